from __future__ import annotations

import json

import pytest

from validation import references
from validation.outcome import DOES_NOT_HOLD, HOLDS, NOT_JUDGED, ValidationError

from .examples import CPU_CLASS, A, B

DIGESTS = {"transformer": {"fp32": A, "bf16": B}}


def reference(**changes):
    given = {"lock": "sha256:lock", "tree": "sha256-tree", "digests": DIGESTS, **changes}
    return references.Reference(CPU_CLASS, given["lock"], given["tree"], given["digests"], {})


def judge(directory, digests=DIGESTS, *, lock="sha256:lock", tree="sha256-tree", repeats=True):
    return references.judge(
        "reference",
        CPU_CLASS,
        digests,
        lock=lock,
        tree=tree,
        repeats=repeats,
        directory=directory,
    )


@pytest.fixture
def recorded(tmp_path):
    references.record(reference(), replace=False, directory=tmp_path)
    return tmp_path


def test_the_same_digests_are_identical_to_the_reference(recorded):
    outcome = judge(recorded)
    assert outcome.verdict == HOLDS
    assert outcome.evidence.startswith("identical to the reference of class")


def test_one_other_digest_differs_and_both_are_shown(recorded):
    outcome = judge(recorded, {"transformer": {"fp32": B}})
    assert outcome.verdict == DOES_NOT_HOLD
    assert "transformer, fp32" in outcome.evidence
    assert A in outcome.evidence
    assert B in outcome.evidence


def test_a_class_without_a_reference_is_not_judged_and_gets_its_digest(tmp_path):
    outcome = judge(tmp_path)
    assert outcome.verdict == NOT_JUDGED
    assert not outcome.needed
    assert "repeats run to run, digest sha256:" in outcome.evidence
    assert "repetition was not judged" in judge(tmp_path, repeats=False).evidence


@pytest.mark.parametrize("change", [{"lock": "sha256:other"}, {"tree": "sha256-other"}])
def test_a_reference_of_another_lock_or_tree_is_not_judged_against(recorded, change):
    outcome = judge(recorded, **change)
    assert outcome.verdict == NOT_JUDGED
    assert outcome.needed
    assert "another" in outcome.evidence


def test_without_a_parent_the_numbers_are_judged_alone(recorded):
    assert judge(recorded, lock="", tree="").verdict == HOLDS


def test_a_digest_the_reference_lacks_is_not_judged(recorded):
    outcome = judge(recorded, {"transformer": {"fp32": A, "fp8": B}})
    assert outcome.verdict == NOT_JUDGED


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace("sha256:aaaa", "sha256:zzzz"),
        lambda text: text.replace('"format": 1', '"format": 2'),
        lambda text: text.replace('"lock"', '"lok"'),
        lambda text: text.replace("avx2", "avx512"),
        lambda text: json.dumps({**json.loads(text), "digests": {"transformer": 3}}),
    ],
)
def test_a_damaged_reference_is_named_and_nothing_is_judged_against_it(recorded, damage):
    path = next(recorded.iterdir())
    path.write_text(damage(path.read_text()))
    outcome = judge(recorded)
    assert outcome.verdict == NOT_JUDGED
    assert outcome.needed
    assert path.name in outcome.evidence
    assert "git checkout" in outcome.evidence


def test_recording_again_changes_nothing(recorded):
    before = next(recorded.iterdir()).read_bytes()
    said = references.record(reference(), replace=False, directory=recorded)
    assert "already" in said
    assert next(recorded.iterdir()).read_bytes() == before


def test_recording_refuses_another_digest_and_shows_both(recorded):
    other = reference(digests={"transformer": {"fp32": B, "bf16": B}})
    before = next(recorded.iterdir()).read_bytes()
    with pytest.raises(ValidationError) as fault:
        references.record(other, replace=False, directory=recorded)
    assert A in str(fault.value)
    assert B in str(fault.value)
    assert "--replace" in str(fault.value)
    assert next(recorded.iterdir()).read_bytes() == before
    references.record(other, replace=True, directory=recorded)
    assert judge(recorded).verdict == DOES_NOT_HOLD


def test_recording_the_same_digests_for_another_lock_needs_no_replace(recorded):
    references.record(reference(lock="sha256:new"), replace=False, directory=recorded)
    assert judge(recorded, lock="sha256:new").verdict == HOLDS


def test_a_directory_that_cannot_be_written_gives_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValidationError, match="could not be made"):
        references.record(reference(), replace=False, directory=tmp_path / "file" / "references")


def test_every_reference_in_the_repository_can_be_read_and_is_named_after_its_class():
    paths = sorted(references.DIRECTORY.glob("*.json"))
    assert paths
    for path in paths:
        found = references.load(path)
        assert references.file_name(found.machine_class) == path.name


def test_a_digest_the_reference_lacks_hides_no_wrong_one(recorded):
    outcome = judge(recorded, {"ddp": {"3 ranks": A}, "transformer": {"fp32": B}})
    assert outcome.verdict == DOES_NOT_HOLD
    assert "transformer, fp32" in outcome.evidence
