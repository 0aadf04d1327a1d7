"""Model card of a policy: a README for people, with metadata that sites of models read."""

from __future__ import annotations

import html
import json
import re
from statistics import fmean, pstdev
from typing import Any

import sharpwave as sw
from sharpwave.configuration import leaves
from sharpwave.escaping import printable


def model_card(policy: Any) -> str:
    """Return the README of a saved policy: what it was trained in, its held-out score, its settings and its use."""
    settings, env, scores = policy.agent.settings, policy.env, policy.figures.get("scores")
    kind, task = settings.kind, "unknown" if env is None else _said(env.name)
    head: dict[str, Any] = {
        "library_name": "sharpwave",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", kind, *([] if env is None else [task])],
    }
    rows = [("algorithm", f"`{kind}`"), ("environment", f"`{task}`"), ("steps of training", f"{policy.steps:,}")]
    if scores:
        of = f"{fmean(scores):.2f} ± {pstdev(scores):.2f}"
        rows.append(("score", f"{of}, mean and deviation of {len(scores)} held-out episodes that chose it"))
        metric = {"type": "mean_reward", "name": "mean reward", "value": of}
        result = {
            "task": {"type": "reinforcement-learning"},
            "dataset": {"name": task, "type": task},
            "metrics": [metric],
        }
        head["model-index"] = [{"name": kind, "results": [result]}]
    rows += [("observations", f"`{_said(policy.observation_space)}`"), ("actions", f"`{_said(policy.action_space)}`")]
    usual = {one.key: one.value for one in leaves(type(settings)())}
    changed = [(f"`{one.key}`", f"`{_said(one.value)}`") for one in leaves(settings) if usual.get(one.key) != one.value]
    front = "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in head.items())  # as YAML
    predicts = "action = policy.act(obs)"
    if policy.agent.remembers:
        predicts = "action, state = policy.predict(obs, state, episode_start, deterministic=True, reward=reward)"
    return (
        f"""---
{front}
---

# {kind}{"" if env is None else f" for {_text(env.name)}"}

A policy that Sharpwave {sw.__version__} trained.

{_table(rows)}

```python
import sharpwave as sw

policy = sw.Policy.load("FOLDER")  # this one
{predicts}
sw.evaluate(policy{"" if env is not None else ", env"}, episodes=100)
```

`policy.safetensors` has the weights, `policy.json` algorithm, settings and spaces. Nothing is pickled.

{"Settings that differ from the algorithm's own:" if changed else "All settings are the algorithm's own."}

{_table(changed) if changed else ""}
""".rstrip()
        + "\n"
    )


def _said(value: Any) -> str:
    return printable(str(value)).replace("`", "'").replace("|", "/").replace("\n", " ")


def _text(value: str) -> str:
    """Return a name of unknown origin as text of Markdown that displays as it is."""
    line = html.escape(printable(value).replace("\n", " "), quote=False)
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", line)


def _table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)])
