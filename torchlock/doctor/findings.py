"""A rule, what it finds, and how findings are put in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from torchlock.doctor.evidence import Evidence

CERTAIN = "certain"
LIKELY = "likely"
POSSIBLE = "possible"
_ORDER = {CERTAIN: 0, LIKELY: 1, POSSIBLE: 2}
_LINES_SHOWN = 8
_OF_THE_GPU = r"cud|nccl|gpu|nvidia|driver|cublas|device|Aborted|dumped|killed"

Fix = tuple[str, ...]


@dataclass(frozen=True)
class Match:
    """What made a rule hold: the lines it rests on, and values for its `<name>` placeholders.

    `fix` replaces the rule's own fix where the evidence calls for another one.
    """

    lines: tuple[str, ...]
    certainty: str = CERTAIN
    values: Mapping[str, str] = field(default_factory=dict)
    fix: Fix = ()


@dataclass(frozen=True)
class Rule:
    """One cause: how it shows, how it is fixed, what it is told apart from.

    `judge` is a pure function. `follows` names codes or kinds that this cause merely follows
    from where they hold too.
    """

    code: str
    kind: str
    cause: str
    shows: str
    fix: Fix | Callable[[Evidence], Fix]
    judge: Callable[[Evidence], Match | None]
    apart: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()

    def commands(self, evidence: Evidence) -> Fix:
        """What to type, for the distribution and container engine in `evidence`."""
        return self.fix(evidence) if callable(self.fix) else self.fix


@dataclass(frozen=True)
class Finding:
    """A cause found, with its evidence and its cure; `consequences` are findings it explains."""

    code: str
    kind: str
    cause: str
    certainty: str
    evidence: tuple[str, ...]
    fix: Fix
    apart: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()


def rule(
    code: str,
    kind: str,
    *,
    cause: str,
    shows: str,
    fix: Fix | Callable[[Evidence], Fix],
    apart: tuple[str, ...] = (),
    follows: tuple[str, ...] = (),
) -> Callable[[Callable[[Evidence], Match | None]], Rule]:
    """Makes a `Rule` of the function it decorates."""

    def make(judge: Callable[[Evidence], Match | None]) -> Rule:
        return Rule(code, kind, cause, shows, fix, judge, apart, follows)

    return make


def said(
    evidence: Evidence,
    pattern: str,
    *,
    source: str = "",
    certainty: str = CERTAIN,
    **values: str,
) -> Match | None:
    """A match that rests on every line that says `pattern`."""
    lines = evidence.grep(pattern, source=source)
    return Match(lines, certainty, values) if lines else None


def message_rule(
    code: str,
    kind: str,
    pattern: str,
    *,
    cause: str,
    fix: Fix | Callable[[Evidence], Fix],
    certainty: str = CERTAIN,
    apart: tuple[str, ...] = (),
    follows: tuple[str, ...] = (),
    needs_fault: bool = False,
) -> Rule:
    """A rule for a message that has one cause only; named groups fill its placeholders.

    With `needs_fault` it holds only where CUDA does not work or a program failed on the GPU: logs
    keep such messages from days past.
    """

    def judge(evidence: Evidence) -> Match | None:
        works = evidence.torch.available is True
        if needs_fault and works and not re.search(_OF_THE_GPU, evidence.error, re.I):
            return None
        found = evidence.first(pattern)
        if not found:
            return None
        values = {name: value for name, value in found.groupdict().items() if value}
        return said(evidence, pattern, certainty=certainty, **values)

    return Rule(code, kind, cause, f"the message `{pattern}`", fix, judge, apart, follows)


def fill(text: str, values: Mapping[str, str]) -> str:
    """`text` with its `<name>` placeholders replaced."""
    return re.sub(r"<(\w+)>", lambda m: values.get(m[1], m[0]), text)


def _sentence(cause: str) -> str:
    """A cause whose unknown parts read as words: `<extension> needs` is `The extension needs`."""
    known = re.sub(r"<([a-z]+)>", r"the \1", cause)
    return known[:1].upper() + known[1:] if known != cause else cause


def found(rule: Rule, match: Match, evidence: Evidence, known: Mapping[str, str]) -> Finding:
    """The finding for a rule that holds."""
    fix = match.fix or rule.commands(evidence)
    values = {**known, **match.values}
    return Finding(
        code=rule.code,
        kind=rule.kind,
        cause=_sentence(fill(rule.cause, values)),
        certainty=match.certainty,
        evidence=(match.lines or evidence.grep("", source="^cuInit$"))[:_LINES_SHOWN],
        fix=tuple(fill(step, values) for step in fix),
        apart=rule.apart,
    )


def in_order(
    rules: tuple[Rule, ...], evidence: Evidence, known: Mapping[str, str] = MappingProxyType({})
) -> tuple[Finding, ...]:
    """The findings of all rules that hold: the root cause first, what follows folded under it.

    Certain causes come first; among equals those that rest on the error itself, then the order
    of `rules`, which goes from the hardware up to the program. `known` fills placeholders that a
    rule leaves open.
    """
    held = []
    for number, each in enumerate(rules):
        match = each.judge(evidence)
        if match:
            finding = found(each, match, evidence, known)
            explains = any(line.startswith(("error: ", "torch: ")) for line in finding.evidence)
            held.append((_ORDER[match.certainty], not explains, number, each, finding))
    held.sort(key=lambda item: item[:3])
    roots: list[Finding] = []
    consequences: dict[str, list[str]] = {}
    root_of: dict[str, str] = {}
    for position, (_, _, _, each, finding) in enumerate(held):
        causes = [
            other.code
            for place, (_, _, _, other, cause) in enumerate(held)
            if _names(each, other)
            and (cause.certainty != POSSIBLE or finding.certainty == POSSIBLE)
            and (place < position or not _names(other, each))
        ]
        if causes:
            root_of[each.code] = causes[0]
        else:
            roots.append(finding)
    if held and not roots:  # causes that name each other in a ring: the first of them counts
        roots.append(held[0][4])
        root_of.pop(roots[0].code)
    for *_, finding in held:
        code, seen = finding.code, {finding.code}
        while code in root_of and root_of[code] not in seen:
            code = root_of[code]
            seen.add(code)
        if code != finding.code:
            root = code if code in {each.code for each in roots} else roots[0].code
            consequences.setdefault(root, []).append(f"{finding.code}: {finding.cause}")
    return tuple(
        replace(each, consequences=tuple(consequences.get(each.code, ()))) for each in roots
    )


def _names(each: Rule, other: Rule) -> bool:
    """Whether `each` is said to follow from `other`, by its code or its kind."""
    return each is not other and bool({other.code, other.kind} & set(each.follows))
