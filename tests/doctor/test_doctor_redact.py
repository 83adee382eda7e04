"""Saved evidence carries no names, serial numbers or addresses, and judges the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_redacted_case_is_judged_the_same(case):
    evidence = loose.read(case["evidence"])
    before = [finding.code for finding in judge(evidence).findings]
    assert [
        finding.code for finding in judge(redact(evidence, ["h0st"], ["us3r"])).findings
    ] == before
