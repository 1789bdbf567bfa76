"""SQL for the tests that a rollout failed, as the page counts and finds them."""

_PASSED = "'PASSED', 'XFAIL'"
FAILING = f"""list_filter(map_entries(w.tests), lambda t: t.value not in ({_PASSED}) and (
               t.value <> 'SKIPPED' or (
                   not w.resolved and coalesce(w.parts['fail_to_pass'] < 1, true)
                   and len(list_filter(map_values(w.tests), lambda s: s not in ({_PASSED}, 'SKIPPED'))) = 0
               )))"""
"""Entries of failed tests of a reward `w`. A skipped test has failed only if the task asked that it pass: so
where a test that had to pass did not, and no other test failed. Otherwise it is one that had to stay passing,
which the grader takes as kept."""
