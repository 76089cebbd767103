"""Policy: which tools may be called, with which parameters (paper, section III, Algorithm 1).

Requested and executed calls are judged alike: asking for a forbidden tool is the breach.
"""

from __future__ import annotations

import json
from typing import Any, Final

from monitor.contract import Rules
from monitor.model import UNSEEN, Call, Finding, Judgement, Severity, Struct
from monitor.rule import CLEAN, LISTED, excerpt, listed

VALUE_DEPTH: Final = 64
"""A list or mapping nested more deeply is no enumerated value; it is not even written out."""


class PolicyState(Struct, frozen=True, array_like=True):
    """What was found, by call, then check; and the calls whose arguments a rule had to see."""

    findings: tuple[Finding, ...] = ()
    blind: tuple[str, ...] = ()


class _Parameters:
    """The rule for one tool, compiled."""

    __slots__ = ("allowed", "forbidden", "required")

    def __init__(
        self,
        required: tuple[str, ...],
        forbidden: tuple[str, ...],
        allowed: dict[str, tuple[Any, ...]],
    ) -> None:
        self.required = tuple(dict.fromkeys(required))
        self.forbidden = tuple(dict.fromkeys(forbidden))
        self.allowed = tuple(
            (name, frozenset(string_form(value) for value in values))
            for name, values in allowed.items()
        )


class PolicyMonitor:
    """A contract's policy rules as a monitor."""

    def __init__(self, rules: Rules, severities: dict[str, Severity] | None = None) -> None:
        self._allowed = frozenset(rules.allowed_tools)
        self._forbidden = frozenset(rules.forbidden_tools)
        self._parameters = {
            tool: _Parameters(rule.required, rule.forbidden, rule.allowed_values)
            for tool, rule in rules.parameter_rules.items()
        }
        self._severities = severities or {}
        # An excerpt of an argument could be the value of a filtered field: none is taken then.
        self._excerpts = not rules.filtered_fields

    def initial(self) -> PolicyState:
        return _INITIAL

    def step(self, state: PolicyState, call: Call) -> PolicyState:
        tool = call.tool
        allowed = not self._allowed or tool in self._allowed
        forbidden = tool in self._forbidden
        parameters = self._parameters.get(tool)
        if allowed and not forbidden and parameters is None:
            return state
        findings: list[Finding] = []
        blind = state.blind
        if not allowed:
            findings.append(
                self._finding("TOOL_NOT_ALLOWED", call, "the tool is not on the list of allowed")
            )
        if forbidden:
            findings.append(self._finding("TOOL_FORBIDDEN", call, "the tool is forbidden"))
        if parameters is not None:
            arguments = call.arguments
            if arguments is None or arguments == "":
                arguments = {}
            if arguments is UNSEEN or not isinstance(arguments, dict):
                blind = (*blind, call.key)
            else:
                self._judge_parameters(parameters, arguments, call, findings)
        if not findings and blind is state.blind:
            return state
        return PolicyState(listed(state.findings, findings), blind[:LISTED])

    def judge(self, state: PolicyState) -> Judgement:
        if state is _INITIAL:
            return CLEAN
        return Judgement(now=state.findings, blind=state.blind)

    def _judge_parameters(
        self,
        parameters: _Parameters,
        arguments: dict[str, Any],
        call: Call,
        findings: list[Finding],
    ) -> None:
        for name in parameters.required:
            value = arguments.get(name)
            if value is None or (isinstance(value, str) and not value.strip()):
                findings.append(
                    self._finding("PARAM_MISSING", call, f"parameter {name} is missing", name)
                )
        findings.extend(
            self._finding("PARAM_FORBIDDEN", call, f"parameter {name} is forbidden", name)
            for name in parameters.forbidden
            if name in arguments
        )
        for name, values in parameters.allowed:
            value = arguments.get(name)
            if value is None:
                continue
            form = string_form(value)
            if form not in values:
                findings.append(
                    self._finding(
                        "PARAM_VALUE_INVALID",
                        call,
                        f"parameter {name} holds none of the allowed values",
                        name,
                        excerpt(form or "(nested too deeply)") if self._excerpts else None,
                    )
                )

    def _finding(
        self,
        check: str,
        call: Call,
        message: str,
        parameter: str | None = None,
        evidence: str | None = None,
    ) -> Finding:
        code = f"POLICY_{check}"
        return Finding(
            layer="policy",
            code=code,
            subject=call.key if parameter is None else f"{call.key}:{parameter}",
            message=f"{call.tool}: {message}",
            severity=self._severities.get(code, "error"),
            step=call.step,
            call=call.key,
            call_id=call.call_id,
            span_id=call.span_id,
            tool=call.tool,
            evidence=evidence,
        )


_INITIAL: Final = PolicyState()


def string_form(value: Any) -> str | None:
    """A value as JSON writes it, a string as it is; None for one nested too deeply."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list | tuple) and _deeper(value, VALUE_DEPTH):
        return None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _deeper(value: Any, limit: int) -> bool:
    """Whether containers nest more than `limit` deep; level by level, without recursion."""
    level = [value]
    for _ in range(limit):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list | tuple)
        ]
        if not level:
            return False
    return True
