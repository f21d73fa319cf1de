import json
import pathlib
import threading

import pytest

from rlvr_jax.core.records import Example
from rlvr_jax.tasks import maths
from rlvr_jax.tasks.verify import VerifierPool, verify

pytest.importorskip("math_verify", reason="needs the math extra: pip install -e .[math]")

VECTOR = r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"

# reference, answer in a box, rule, correct
ANSWERS = [
  ("1/2", r"\frac{1}{2}", "numeric", True),
  (r"\frac{1}{3}", "0.3333", "numeric", False),
  (r"50\%", "0.5", "numeric", False),  # the policy of `answers` holds: sympy is not asked
  ("(x+1)^2", "x^2 + 2x + 1", "symbolic", True),
  ("(x+1)^2", "x^2 + 2x + 2", "symbolic", False),
  (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt 3}", "symbolic", True),
  (r"\frac{\pi}{2}", "pi/2", "symbolic", True),
  (r"\frac{\pi}{2}", "1.5707963268", "symbolic", True),
  (r"\sqrt2", "1.41421", "symbolic", False),
  ("1024", "2^{10}", "symbolic", True),
  ("1024", "2**10", "symbolic", True),
  (r"\log_2 8", "3", "symbolic", True),
  ("3+4i", "4i+3", "symbolic", True),
  ("5", "x = 5", "exact", True),
  ("x = 5", "5", "symbolic", True),
  ("y = 2x + 1", "y = 1 + 2x", "symbolic", True),
  ("x < 5", "5 > x", "symbolic", True),
  ("x < 5", "x > 5", "symbolic", False),
  (r"3\sqrt{2}\text{ cm}", r"3\sqrt2", "symbolic", True),
  # tuples, intervals, sets, matrices
  ("(1, 2)", r"\left( 1.0, \frac{4}{2} \right)", "symbolic", True),
  ("(1, 2)", "(2, 1)", "symbolic", False),
  ("(1, 2)", "[1, 2]", "symbolic", False),
  ("(1, 2)", r"\{1, 2\}", "brackets", False),
  (r"\{1, 2\}", "(1, 2)", "brackets", False),
  (r"\{1, 2\}", "2, 1", "symbolic", True),
  ("1, 2", r"\{2, 1\}", "symbolic", True),
  (r"2 \pm \sqrt{3}", r"2-\sqrt3, 2+\sqrt3", "symbolic", True),
  (r"(-\infty, 3] \cup [5, \infty)", r"x \in (-\infty,3] \cup [5,\infty)", "symbolic", True),
  (r"(-\infty, 3]", r"(-\infty, 3)", "symbolic", False),
  (VECTOR, r"\begin{pmatrix}1\\2\end{pmatrix}", "symbolic", True),
  (VECTOR, r"\begin{pmatrix}2\\1\end{pmatrix}", "symbolic", False),
  # words
  (r"\text{Tuesday}", "Tuesday", "exact", True),
  ("Tuesday", "Wednesday", "not maths", False),
  ("10:30", "10:31", "symbolic", False),
  # attempts at the grader
  ("2", "1 or 2 or 3", "symbolic", False),
  ("2", "1, 2, 3", "symbolic", False),
  ("10", "10**10**9", "too large", False),
  ("10", "10^{10^9}", "too large", False),
  ("10", "9^{9^{9^9}}", "too large", False),
  ("10", "(2^{9})^{99999}", "too large", False),
  ("10", "99999999!", "too large", False),
  ("x", "(" * 99 + "x" + ")" * 99, "too large", False),
  ("x", "7" * 10_000, "not maths", False),
  ("x", "x" + "+0" * 5000, "not maths", False),
  ("x", "__import__('os').getpid()", "not maths", False),
  ("x", "the value of x is x", "not maths", False),
  ("x", r"\frac{}{}", "unparsable", False),
]


def judge(reference, answer):
  return maths.verify(Example("q", reference, "s"), rf"So \boxed{{{answer}}}.")


@pytest.mark.parametrize(("reference", "answer", "rule", "correct"), ANSWERS)
def test_answers_are_judged_as_stated(reference, answer, rule, correct):
  verdict = judge(reference, answer)
  assert (verdict.correct, verdict.rule) == (float(correct), f"boxed, {rule}")
  assert verdict.parsed == answer


def test_t49_the_thread_does_not_matter():
  rows = ANSWERS[3:8]
  found = []
  thread = threading.Thread(target=lambda: found.extend(judge(*row[:2]) for row in rows))
  thread.start()
  thread.join()
  assert found == [judge(*row[:2]) for row in rows]


def test_t50_what_sympy_never_finishes_costs_its_own_time_only():
  # 9999 to the power of 10^12: no part of it looks large.
  endless = "((9999^{9999})^{9999})^{9999}"
  texts = [r"\boxed{x+x}", rf"\boxed{{{endless}}}", r"\boxed{x+x}"]
  with VerifierPool(maths.verify, workers=1, time_limit_seconds=4.0) as pool:
    verdicts = pool([Example("q", "2x", "s")] * 3, texts)
    assert [v.correct for v in verdicts] == [1.0, 0.0, 1.0]
    assert verdicts[1].rule == "timeout"
    assert (pool.counters["verified"], pool.counters["timeout"]) == (2, 1)


def test_a_pool_without_processes_refuses_it():
  with pytest.raises(ValueError, match="workers >= 1"):
    VerifierPool(maths.verify, workers=0)


def test_unparsable_references_are_found():
  for fine in ("1,234", r"\frac{1}{2}", "Tuesday", r"\text{(A)}", "10:30", "1, 2", VECTOR):
    maths.check_reference(fine)
  for bad in (
    "",
    "nan",
    r"\frac{1}{2",
    r"\frac{}{}",
    "2^",
    r"\nothing{3}",
    "}",
    "10^{10^9}",
    "x^2" * 999,
  ):
    with pytest.raises(ValueError, match="reference"):
      maths.check_reference(bad)
  with pytest.raises(ValueError, match="string"):
    maths.check_reference(5)
  with pytest.raises(ValueError, match="cannot be read"):
    judge(r"\frac{1}{2", "x")


REAL = pathlib.Path(__file__).parent / "data" / "real_completions.jsonl"
ROWS = [json.loads(line) for line in REAL.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_completions_of_a_real_model_are_judged_as_by_hand(row):
  # Written by SmolLM2-135M-Instruct; "read" and "hand" are what a person reads and says. Where a stated
  # policy has it otherwise, "policy" names it: the form of an answer is not looked at, and an answer that
  # is no number wants a mark.
  verifier = {"math": maths.verify, "text": verify}[row["verifier"]]
  verdict = verifier(Example(row["question"], row["answer"], "s"), row["completion"])
  assert verdict.correct == (row["hand"] if "policy" not in row else 1 - row["hand"])
  assert verdict.parsed == (
    row["completion"].strip() if row["read"] == "all of it" else row["read"]
  )


def test_missing_package_is_named(monkeypatch):
  monkeypatch.setitem(__import__("sys").modules, "math_verify", None)
  maths._package.cache_clear()
  assert judge("1/2", "0.5").correct == 1.0  # numbers need no package
  with pytest.raises(ImportError, match=r"\.\[math\]"):
    judge("2x", "x+x")
  maths._package.cache_clear()
