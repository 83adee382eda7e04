"""Saved evidence carries no names, serial numbers or addresses, and judges the same."""

from __future__ import annotations

import ipaddress
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unseen import UNSEEN

from torchlock.doctor import loose
from torchlock.doctor.diagnosis import judge
from torchlock.doctor.redact import redact

CASES = json.loads((Path(__file__).parent / "cases.json").read_text())
PRIVATE = {
    "context": {"os": "Ubuntu 22.04"},
    "env": {
        "CONDA_PREFIX": "/home/jdoe/miniconda3/envs/ml",
        "MASTER_ADDR": "gpu-node17.cluster.example",
        "PIP_INDEX_URL": "https://alice:hunter2@mirror.example/simple",
        "USER": "jdoe",
        "CUDA_VISIBLE_DEVICES": "GPU-3f2c0a11-aaaa-bbbb-cccc-1234567890ab",
    },
    "cmd": {
        "nvidia-smi -L": "GPU 0: NVIDIA A100 (UUID: GPU-3f2c0a11-aaaa-bbbb-cccc-1234567890ab)",
        "nvidia-smi -q": "    Serial Number : 1560123004567",
        "ip addr": "inet 10.11.12.13/24 brd 10.11.12.255\nlink/ether 3c:ec:ef:12:34:56\ninet6 "
        "fe80::3eec:efff:fe12:3456/64",
        "dmesg": "workstation-of-jdoe kernel: NVRM: Xid (PCI:0000:03:00): 79, GPU has "
        "fallen off the bus.",
        "pip list": "nvidia-cudnn-cu12 9.5.1.17",
    },
}


def test_personal_details_are_replaced():
    text = redact(loose.read(PRIVATE), ["workstation-of-jdoe"], ["jdoe"]).to_json()
    for secret in (
        "jdoe",
        "gpu-node17",
        "hunter2",
        "3f2c0a11",
        "1560123004567",
        "10.11.12.13",
        "3c:ec:ef",
        "fe80:",
    ):
        assert secret not in text


def test_what_the_rules_need_stays():
    kept = redact(loose.read(PRIVATE), ["workstation-of-jdoe"], ["jdoe"])
    assert kept.packages == {"nvidia-cudnn-cu12": "9.5.1.17"}
    assert kept.gpus[0].uuid == kept.env["CUDA_VISIBLE_DEVICES"]
    assert judge(kept).findings[0].code == "xid79-fell-off-bus"


def redacted(text, hosts=(), users=()):
    return redact(loose.read({"cmd": {"log": text}}), hosts, users).lines[0].text


def test_no_channel_token_stays():
    text = "CondaHTTPError: HTTP 403 for url <https://h.example/t/tk-12-ab/forge/noarch/p.conda>"
    assert redacted(text) == text.replace("tk-12-ab", "<TOKEN>")
    assert redacted("/usr/share/t/file") == "/usr/share/t/file"


PLACES = ["{}", "inet6 {}/64 scope", "[{}]:29500", "src:{}", "{}%eth0", "to {}.", "from {}: no",
          "MASTER_ADDR={}", "{}, {}", "tcp://[{}]:1", "({})", "{}.29500"]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.ip_addresses(v=6)
    | st.integers(2, 2**20).map(lambda n: ipaddress.IPv6Address(0xFE80 << 112 | n)),
    st.sampled_from(["compressed", "exploded"]),
    st.booleans(),
    st.sampled_from(PLACES),
)
def test_no_ipv6_address_stays(address, form, upper, place):
    text = getattr(address, form)
    text = text.upper() if upper else text
    if address in ipaddress.IPv6Network("2001:db8::/32") or int(address) < 2:
        return
    cleaned = redacted(place.format(text, text))
    assert text not in cleaned
    assert cleaned == place.format("2001:db8::1", "2001:db8::1")


@pytest.mark.parametrize(
    "address", ["2a01:4f8::2", "fe80::1", "fd00::", "::ffff:10.1.2.3", "ff02::1:2"]
)
@pytest.mark.parametrize("place", PLACES)
def test_short_ipv6_addresses_do_not_stay(address, place):
    assert redacted(place.format(address, address)) == place.format("2001:db8::1", "2001:db8::1")


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:03:00): 79",
        "GPU 00000000:17:00.0 at 12:34:56",
        "2026-01-02T12:34:56.789",
        "std::add c10::cuda::device at::native::abs c10::Error a.cpp:12:34",
        "undefined symbol: _ZN3c10: std::bad_alloc::fe",
        "/usr/lib:/opt/cuda/lib64::",
        "::1 and 127.0.0.1 and ::",
        "cudnn=9.5.1.17 cudnn==9.5.1.17 cudnn-9.5.1.17",
    ],
)
def test_what_only_looks_like_an_address_stays(text):
    assert redacted(text) == text


@pytest.mark.parametrize(
    "text", ["to 10.1.2.3.", "MASTER_ADDR=10.1.2.3", "10.1.2.3:29500", "(10.1.2.3)"]
)
def test_ipv4_addresses_do_not_stay(text):
    assert redacted(text) == text.replace("10.1.2.3", "192.0.2.1")


def test_hardware_addresses_of_every_length_do_not_stay():
    guid = "98:03:9b:03:00:cc:bb:aa"
    for address in (guid, "a0:00:02:20:fe:80:00:00:00:00:00:00:" + guid, "3c:ec:ef:12:34:56"):
        assert redacted(f"link/x {address} brd") == "link/x 02:00:00:00:00:01 brd"


HOST = st.from_regex(
    re.compile(r"[0-9][a-z0-9-]{0,10}[a-z][a-z0-9]{0,4}(\.[a-z]{2,8}){0,2}", re.A), fullmatch=True
)


@settings(max_examples=200, deadline=None)
@given(HOST)
def test_host_names_that_begin_with_a_digit_do_not_stay(host):
    assert redacted(f"Jan 1 {host} kernel: NVRM", [host]) == "Jan 1 host-1 kernel: NVRM"
    short = host.partition(".")[0]
    if len(short) > 2:
        assert redacted(f"Jan 1 {short} kernel: NVRM", [host]) == "Jan 1 host-1 kernel: NVRM"


CLUSTER = {
    "env": {
        "SLURM_JOB_NODELIST": "tux[007-009,12],login1",
        "SLURM_SUBMIT_HOST": "login2.cluster.example",
        "SLURM_LAUNCH_NODE_IPADDR": "10.20.30.40",
        "SLURMD_NODENAME": "tux008",
        "SLURM_JOB_USER": "jdoe",
        "SLURM_JOB_ACCOUNT": "proj-dark-matter",
        "SLURM_JOB_PARTITION": "a100",
    },
    "cmd": {
        "log": "tux007: tux008 to tux009.cluster.example; tux12, tux[007-009,12], tux010, login2",
        "scontrol show job 4": "UserId=asmith(1003) GroupId=chemistry(77) Account=hidden-project\n"
        "NodeList=vega[1-2] BatchHost=vega1",
        "squeue": "4 a100 train asmith R vega2 jdoe (proj-dark-matter, hidden-project, chemistry)",
    },
}


def test_the_names_of_a_cluster_do_not_stay():
    text = redact(loose.read(CLUSTER)).to_json()
    for secret in (
        "tux007", "tux008", "tux009", "tux12", "tux[", "login1", "login2", "10.20.30.40", "jdoe",
        "asmith", "chemistry", "proj-dark-matter", "hidden-project", "vega1", "vega2", "vega[",
    ):  # fmt: skip
        assert secret not in text
    for kept in ("a100", "tux010"):  # of no list
        assert kept in text


NAME = st.from_regex(re.compile(r"[a-z]{3}[a-z0-9-]{0,6}[a-z]", re.A), fullmatch=True)


@settings(max_examples=200, deadline=None)
@given(NAME, st.integers(0, 990), st.integers(0, 9), st.integers(1, 5), NAME, NAME, st.data())
def test_no_host_of_a_node_list_stays(prefix, first, more, width, user, account, data):
    ends = [str(number).zfill(width) for number in (first, first + more)]
    env = {
        data.draw(st.sampled_from(["SLURM_JOB_NODELIST", "SLURM_NODELIST"])): (
            f"{prefix}[{ends[0]}-{ends[1]}],zz9"
        ),
        "SLURM_JOB_USER": user + "7",
        "SLURM_JOB_ACCOUNT": account + "_8",
    }
    host = prefix + str(data.draw(st.integers(first, first + more))).zfill(width)
    log = f"{host}: zz9 {user}7 ({account}_8)"
    cleaned = redact(loose.read({"env": env, "cmd": {"log": log}})).to_json()
    for secret in (host, "zz9", user + "7", account + "_8"):
        assert not re.search(rf"(?<![\w-]){re.escape(secret)}(?![\w-])", cleaned)


@settings(max_examples=100, deadline=None)
@given(st.text("[]-,0123456789ab", max_size=60) | st.integers(0, 4000).map("[".__mul__))
def test_a_broken_node_list_is_no_fault(nodes):
    cleaned = redact(loose.read({"env": {"SLURM_NODELIST": nodes}, "cmd": {"log": "text"}}))
    assert cleaned.lines[0].text == "text"


def test_numbers_that_are_names_do_not_stay_unless_small():
    assert redacted("owner 1234567 rc 12", users=["1234567", "12"]) == "owner user-1 rc 12"


TOLD = [(case["id"], case["evidence"]) for case in CASES]
TOLD += [(what, evidence) for _, what, evidence, _ in UNSEEN]


@pytest.mark.parametrize("told", [pytest.param(told, id=what) for what, told in TOLD])
def test_a_redacted_case_is_judged_the_same(told):
    evidence = loose.read(told)
    before = [finding.code for finding in judge(evidence).findings]
    assert [
        finding.code for finding in judge(redact(evidence, ["h0st"], ["us3r"])).findings
    ] == before
