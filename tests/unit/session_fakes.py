"""Collectors that stand in for real ones: each remembers its calls; one raises where it is told to."""


class Remembers:
    name = "remembers"

    def __init__(self):
        self.calls = []

    def start(self, context):
        self.context = context
        self.calls.append("start")

    def on_step(self, step):
        self.calls.append(step)

    def stop(self):
        self.calls.append("stop")

    def tables(self, folder):
        return {}


class Raises(Remembers):
    name = "raises"

    def __init__(self, hook, error=None):
        super().__init__()
        self.hook, self.error = hook, error or RuntimeError("planted")

    def _maybe(self, hook):
        if hook == self.hook:
            raise self.error

    def start(self, context):
        super().start(context)
        self._maybe("start")

    def on_step(self, step):
        super().on_step(step)
        self._maybe("on_step")

    def stop(self):
        super().stop()
        self._maybe("stop")
