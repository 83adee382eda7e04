"""No evidence, however broken, makes the doctor crash or hang; records survive JSON."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchlock.doctor import loose, parse, report
from torchlock.doctor.__main__ import printable, write
from torchlock.doctor.diagnosis import judge
from torchlock.doctor.evidence import from_json
from torchlock.doctor.redact import redact

CASES = json.loads((Path(__file__).parent / "cases.json").read_text())
# hypothesis leaves surrogates out of its own texts; undecodable bytes are read as such
ANY_TEXT = st.text(max_size=60) | st.text(st.characters(categories=["Cs", "L"]), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=12,
)
KEYS = [
    "context",
    "cmd",
    "env",
    "dev",
    "open_rw",
    "torch",
    "dlopen",
    "cuInit",
    "cuDriverGetVersion",
    "pip",
    "files",
    "maps",
    "pod",
    "script",
    "extension",
    "error",
    "observed",
]
WORDS = sorted(
    {
        line
        for case in CASES
        for value in case["evidence"].get("cmd", {}).values()
        for line in str(value.get("out", "") if isinstance(value, dict) else value).splitlines()
    }
    | {str(case["evidence"].get("error", "")) for case in CASES}
)
COMMANDS = sorted({name for case in CASES for name in case["evidence"].get("cmd", {})})
OPTIONS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def everything(evidence):
    diagnosis = judge(evidence)
    assert report.to_text(diagnosis)
    assert json.loads(report.to_json(diagnosis))["status"] == diagnosis.status
    assert from_json(json.loads(evidence.to_json())) == evidence
    cleaned = redact(evidence, ["somehost"], ["someuser"])
    for text in (report.to_text(diagnosis), report.to_json(diagnosis), cleaned.to_json()):
        for encoding in ("utf-8", "ascii"):
            stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
            stream.write(printable(text, stream))
            stream.flush()
        write(os.devnull, text)


@OPTIONS
@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), JSON, max_size=8))
def test_any_loose_form(value):
    everything(loose.read(value))


@OPTIONS
@given(
    st.sampled_from(CASES),
    st.dictionaries(
        st.sampled_from(COMMANDS),
        st.lists(st.sampled_from(WORDS), max_size=4).map("\n".join),
        max_size=5,
    ),
    st.dictionaries(st.sampled_from(KEYS), JSON, max_size=2),
)
def test_a_case_with_parts_exchanged(case, outputs, junk):
    value = dict(case["evidence"])
    value["cmd"] = value.get("cmd", {}) | outputs
    everything(loose.read(value | junk))


@OPTIONS
@given(JSON)
def test_any_saved_record(value):
    everything(from_json(value))


@OPTIONS
@given(st.sampled_from(CASES), st.data())
def test_a_saved_record_with_a_part_broken(case, data):
    value = json.loads(loose.read(case["evidence"]).to_json())
    key = data.draw(st.sampled_from(sorted(value)))
    value[key] = data.draw(JSON)
    everything(from_json(value))


@OPTIONS
@given(st.text(max_size=400), st.text(max_size=40))
def test_parsers_take_any_text(text, command):
    parse.smi(command, text, None)
    parse.lspci(text)
    parse.modules(text)
    parse.node(text)
    parse.ls_nodes(text)
    parse.libraries(text, "ldd")
    parse.maps(text)
    parse.packages("pip list", text)
    parse.packages(command, text)
    parse.collect_env(text)
    parse.errno_name(text)
    assert all(isinstance(part, int) for part in parse.version(text))


def test_large_evidence_ends():
    line = "NVRM: Xid (PCI:0000:03:00): " + "a " * 3_000 + "undefined symbol: " + "x" * 3_000
    value = {"cmd": {"dmesg": "\n".join([line] * 2_000)}, "error": line * 50, "maps": "/" * 100_000}
    judge(loose.read(value))


def test_deep_nesting_ends():
    value: dict[str, object] = {}
    for _ in range(5_000):
        value = {"pod": value}
    judge(loose.read(value))
