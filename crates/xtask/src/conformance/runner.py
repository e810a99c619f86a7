"""Runs one of CPython's test modules and journals each test's outcome.

usage: runner.py MODULE JOURNAL PATIENCE {only|without} NAMES

NAMES is a file of test ids, one a line: only these, or all but these. The journal is one JSON
object a line, written before and after each test, so that it tells the truth after a crash.
"""

import faulthandler
import json
import os
import sys
import unittest

module, journal_path, patience, selection, names_path = sys.argv[1:]
journal = os.open(journal_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
owner = os.getpid()
faulthandler.enable()

# The worst that happened to a test is what happened to it.
SEVERITY = ["ok", "skip", "xfail", "xpass", "fail", "error"]


def tell(**line):
    # A test that forks must not speak for its parent.
    if os.getpid() == owner:
        os.write(journal, (json.dumps(line) + "\n").encode())


def last_line(error):
    kind, value, _ = error
    return f"{kind.__name__}: {value}".strip().splitlines()[0][:200]


class Journal(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        self.outcome, self.why = "ok", ""
        tell(begin=test.id())
        faulthandler.dump_traceback_later(float(patience), exit=True)

    def stopTest(self, test):
        super().stopTest(test)
        faulthandler.cancel_dump_traceback_later()
        tell(test=test.id(), outcome=self.outcome, why=self.why)

    def note(self, test, outcome, why=""):
        # What fails outside a test (setUpClass, setUpModule) has no startTest.
        if not isinstance(test, unittest.TestCase):
            tell(test=test.id(), outcome=outcome, why=why)
        elif SEVERITY.index(outcome) > SEVERITY.index(getattr(self, "outcome", "ok")):
            self.outcome, self.why = outcome, why

    def addError(self, test, error):
        self.note(test, "error", last_line(error))

    def addFailure(self, test, error):
        self.note(test, "fail", last_line(error))

    def addSubTest(self, test, subtest, error):
        if error is not None:
            failed = issubclass(error[0], test.failureException)
            self.note(test, "fail" if failed else "error", last_line(error))

    def addSkip(self, test, reason):
        self.note(test, "skip", reason)

    def addExpectedFailure(self, test, error):
        self.note(test, "xfail")

    def addUnexpectedSuccess(self, test):
        self.note(test, "xpass")


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def main():
    with open(names_path) as file:
        names = set(file.read().split("\n"))
    try:
        from test import support

        # As `python -m test` without -u: nothing that leaves this machine or takes it over. Only
        # test_socketserver says "network" and means loopback.
        support.use_resources = ["network"] if module == "test.test_socketserver" else []
        suite = unittest.defaultTestLoader.loadTestsFromName(module)
    except unittest.SkipTest as reason:
        tell(test=module, outcome="skip", why=str(reason))
        return
    wanted = [test for test in flat(suite) if (test.id() in names) == (selection == "only")]
    unittest.TestSuite(wanted).run(Journal())


main()
tell(end=True)
# Threads that a failed test left behind must not keep the process.
os._exit(0)
