"""`make secure-demo` runs, and each of its calls is allowed or refused as expected."""

from tests.examples.test_with_a_daemon import run_example


def test_table_of_calls() -> None:
    """Strangers cannot connect, members get the access that the policy grants, and no token is printed."""
    printed = run_example("-m", "examples.secure_demo")
    lines = printed.splitlines()
    assert lines[0].split()[:4] == ["caller", "shows", "asks", "for"]
    assert lines[-1] == "18 calls, 6 allowed; 0 not as they should be"
    assert sum("Unavailable" in line for line in lines) == 3
    assert "pgt_" not in printed
