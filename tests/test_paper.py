"""The monitors against an independent transcription of the paper, on generated finished traces."""

from hypothesis import HealthCheck, given, settings

from monitor.contract import Rules
from monitor.corpus import Corpus, flatten
from monitor.grounding import GroundingMonitor
from monitor.model import Call
from monitor.policy import PolicyMonitor
from monitor.trajectory import TrajectoryMonitor
from tests import oracle
from tests.cases import cases


def codes(monitor, case, *evidence):
    """All codes of one layer, in its order."""
    state = monitor.initial()
    for index, call in enumerate(case["mock_trace"]["tool_calls"]):
        state = monitor.step(
            state, Call(f"k{index}", call["tool"], call.get("parameters"), step=index)
        )
    judgement = monitor.judge(state, *evidence)
    assert judgement.undecided == judgement.blind == ()
    return [finding.code for finding in (*judgement.now, *judgement.later)]


def first(found):
    return found[0] if found else None


@settings(max_examples=2500, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_each_layer_gives_the_papers_first_reason(case):
    rules = Rules.model_validate(
        {k: v for k, v in case.items() if k not in {"case_id", "expected_decision", "mock_trace"}}
    )
    trace = case["mock_trace"]
    corpus = Corpus(flatten(trace["tool_results"]))
    assert first(codes(PolicyMonitor(rules), case)) == oracle.policy(case)
    assert first(codes(TrajectoryMonitor(rules), case)) == oracle.trajectory(case)
    grounding = GroundingMonitor(rules)
    assert first(codes(grounding, case, trace["final_answer"], corpus)) == oracle.grounding(case)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_results_added_one_by_one_are_the_same_evidence(case):
    results = case["mock_trace"]["tool_results"]
    corpus = Corpus()
    for key, value in results.items():
        corpus.add(key, flatten(value))
    whole = Corpus(flatten(results))
    assert corpus.text.split() == whole.text.split()
