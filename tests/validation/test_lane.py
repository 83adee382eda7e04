from __future__ import annotations

from validation import lane, machine


def test_a_preset_variable_that_changes_numbers_is_overridden_and_named():
    user = {"OMP_NUM_THREADS": "8", "MKL_VERBOSE": "1", "DNNL_MAX_CPU_ISA": "SSE41", "HOME": "/h"}
    environment = lane.environment(user, lane.PORTABLE)
    assert environment["OMP_NUM_THREADS"] == "1"
    assert "MKL_VERBOSE" not in environment
    assert "DNNL_MAX_CPU_ISA" not in environment
    assert environment["HOME"] == "/h"
    assert lane.overridden(user, lane.PORTABLE) == {
        "DNNL_MAX_CPU_ISA": "SSE41",
        "MKL_VERBOSE": "1",
        "OMP_NUM_THREADS": "8",
    }


def test_a_variable_preset_to_the_lanes_own_value_is_not_worth_a_word():
    assert lane.overridden({"MKL_CBWR": "COMPATIBLE"}, lane.PORTABLE) == {}


def test_children_leave_no_byte_code_in_the_prefix():
    assert lane.environment({}, lane.PORTABLE)["PYTHONDONTWRITEBYTECODE"] == "1"


def test_a_users_choice_of_network_for_nccl_is_kept():
    environment = lane.environment({"NCCL_SOCKET_IFNAME": "eth1", "NCCL_ALGO": "Tree"}, lane.GPU)
    assert environment["NCCL_SOCKET_IFNAME"] == "eth1"
    assert environment["NCCL_ALGO"] == "Ring"


def test_a_cpu_without_avx2_cannot_run_the_lane_and_the_reason_says_so():
    assert machine.why_not_portable("x86_64", ["avx", "fma"]) == "this CPU has no AVX2"
    assert machine.why_not_portable("x86_64", ["avx2", "fma"]) == ""
    assert "aarch64" in machine.why_not_portable("aarch64", [])


CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9B14
flags\t\t: fpu sse4_2 avx2 fma smep avx512f hypervisor

processor\t: 1
model name\t: another
"""


def test_the_cpus_model_and_the_flags_that_choose_code_paths_are_read():
    assert machine.cpu_facts(CPUINFO) == {
        "model": "AMD EPYC 9B14",
        "vendor": "AuthenticAMD",
        "flags": ["avx2", "avx512f", "fma", "sse4_2"],
    }
    assert machine.cpu_facts("") == {"model": "unknown", "vendor": "unknown", "flags": []}


def test_the_drivers_version_is_read_for_both_kinds_of_kernel_module():
    closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.35.05  Fri Oct 18 2024\n"
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
    assert machine.driver_version(closed) == "560.35.05"
    assert machine.driver_version(opened) == "570.86.15"
    assert machine.driver_version("") == "none"
