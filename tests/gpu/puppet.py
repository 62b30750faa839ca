"""Programs that take orders: those of `programs/process/orders.h`, and the tests' own `puppet`."""

import subprocess

# A process that was told to end does so.
END_LIMIT_S = 60


class Puppet:
    """A started process that takes orders by line on standard input, and answers each with a line."""

    def __init__(self, command, environment=None):
        self.process = subprocess.Popen(command, env=environment, text=True, bufsize=1, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        self.pid = self.process.pid

    def tell(self, order):
        self.process.stdin.write(order + "\n")

    def answer(self):
        return self.process.stdout.readline().strip()

    def ask(self, order):
        self.tell(order)
        return self.answer()

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=END_LIMIT_S)
