# countdown.py
"""An environment of one's own: say numbers down to zero, as in `3`, `2`, `1`, `0`."""


class Countdown:
    version = "1"  # raise it when the same seed and actions give something else

    def __init__(self, highest=5):
        self.highest = highest  # settings of the task are arguments

    def reset(self, seed):
        self.next = 1 + seed % self.highest
        return f"Count down from {self.next} to 0. Answer with one number at a time."

    def step(self, action):
        ok = action.text.strip() == str(self.next)
        self.next -= ok
        done = self.next < 0
        reward = 1.0 if done else 0.0
        return "next", reward, done, False, {"ok": ok, "success": done or None}
