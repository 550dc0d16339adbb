"""`meshmend doctor`: can this machine run a job?"""

from __future__ import annotations

from meshmend.cli.app import app


@app.command
def doctor(*, quick: bool = False) -> int:
    """Check whether this machine can run meshmend, with a test that really kills a process.

    Parameters
    ----------
    quick
        Skip the checks that start processes.

    """
    from meshmend import run as launch

    findings = []
    for finding in launch.findings(deep=not quick):
        findings.append(finding)
        print(launch.line(finding), flush=True)
    print(launch.verdict(findings))
    return 1 if any(finding.good is False for finding in findings) else 0
