"""Runs every case in a network namespace and a process of its own and prints how costs grow from one to the next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

from tests.bench.cases import CASES, Measured, measure


def main(arguments: list[str]) -> int:
    """``python -m tests.bench [CASE ...]``; needs root. With ``--measure CASE`` it is the child that measures."""
    if arguments[:1] == ["--measure"]:
        print(json.dumps(measure(CASES[arguments[1]])))
        return 0
    if os.geteuid() != 0:
        print("bench: needs root (it makes network namespaces)", file=sys.stderr)
        return 1
    unknown = [name for name in arguments if name not in CASES]
    if unknown:
        print(f"bench: no such case: {', '.join(unknown)} (there are {', '.join(CASES)})", file=sys.stderr)
        return 2
    _report({name: _in_namespace(name) for name in arguments or CASES})
    return 0


def _in_namespace(name: str) -> Measured:
    namespace = f"bench-{uuid.uuid4().hex[:6]}"
    print(f"measuring: {CASES[name].name} ...", file=sys.stderr, flush=True)
    subprocess.run(["ip", "netns", "add", namespace], check=True)
    try:
        command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "tests.bench", "--measure", name]
        return Measured(*json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    finally:
        subprocess.run(["ip", "netns", "del", namespace], check=False)


def _report(results: dict[str, Measured]) -> None:
    print(f"{'case':<55}{'full load':>12}{'a Service':>12}{'beside':>10}{'one change':>12}{'ten':>8}{'memory':>10}")
    first: dict[object, Measured] = {}
    for name, each in results.items():
        to = first.setdefault(CASES[name].rules, each)
        a_service = each.full / each.services / (to.full / to.services)
        print(
            f"{CASES[name].name:<55}{each.full / to.full:>11.1f}x{a_service:>11.2f}x{each.again / to.again:>9.1f}x"
            f"{each.change / to.change:>11.2f}x{each.churn / each.change:>7.1f}x{each.memory / to.memory:>9.1f}x"
        )
    print(
        "All figures are ratios to the first case of the same mode and backend. Full load: everything written; a Service:\n"
        "its share of that; beside: everything written beside what is there; one change: one endpoint replaced; memory:\n"
        "growth of the peak. Ten: ten changes in one pass, as a ratio to one change of the same case."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
