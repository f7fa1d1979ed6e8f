"""The system: rounds over a style's graph.

    for r in 1..R:
        for role in order:
            prompt = first- or later-round template of (role, family), slots filled with the newest messages
            if role is the speaker and r == R: answer = speak(prompt)
            else: thoughts = think(prompt, m);  for each outgoing link: message = outer(thoughts)

`exchange` is that loop, for inference and for the outer trainer, which gives it another `stage`.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from inference.mas.agent import Agent, Batch
from inference.mas.decoding import Generation, Sampling, sample_seed
from inference.mas.errors import InputError
from inference.mas.links import OuterLink
from inference.mas.prompts import Question, chat_ids, single_parts, system_text, user_parts
from inference.mas.styles import CONTROLS, METHODS, Link, Style
from inference.mas.tools import ToolUse
from inference.mas.writing import Suffix

COUNTS = ("prompt_tokens", "latent_steps", "generated_tokens", "tool_tokens")
Message = list[Any]  # one entry a sample: vectors [m, D] (latent method) or a text (text method)
Stage = Callable[[str, int, dict[str, Message], bool], Any]
Send = Callable[[Link, int, Any], Message]
NeedsSuffix = Callable[[Question, str], Suffix | None]


@dataclass
class Answer:
    """What the system answered to one question, and what it cost over all agents and rounds.

    `prompt_tokens` counts positions that were put in (text, message vectors, suffixes of answers without their form),
    `latent_steps` latent steps, `generated_tokens` written tokens, those of text messages and of every rollout among
    them, and `tool_tokens` tokens of tool results that were read. `tokens` are the same counts by stage ("planner.think"), and
    `seconds` this question's share of its batch by stage.
    """

    question_id: str
    rollouts: list[Generation]
    prompt_tokens: int = 0
    latent_steps: int = 0
    generated_tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    tool_tokens: int = 0
    tokens: dict[str, dict[str, int]] = field(default_factory=dict)


class _Agents(dict[str, Agent]):
    """Agents by role name; labels, training names and any letter case are found too."""

    def __init__(self, style: Style, agents: Mapping[str, Agent]) -> None:
        super().__init__(agents)
        self.style = style

    def __missing__(self, name: str) -> Agent:
        try:
            return self[self.style.role(name).name]
        except InputError as err:
            raise KeyError(str(err)) from err


class MultiAgentSystem:
    """Agents, outer links and the graph that joins them.

    With `offload`, only the agent at work sits on its device; the others wait in CPU memory. Agents that all lack an inner
    link make a system of models alone, without outer links, for the methods "text" and "single".
    """

    def __init__(
        self,
        style: Style,
        agents: Mapping[str, Agent],
        outer_links: Mapping[str, OuterLink],
        task: str = "math",
        offload: bool = False,
    ) -> None:
        self.style = style
        self.agents = _Agents(style, agents)
        self.outer_links = nn.ModuleDict(outer_links)
        self.task = task
        self.offload = offload
        self._resident: nn.Module | None = None
        self.linked = any(agent.inner_link is not None for agent in agents.values())
        for link in style.links if self.linked else ():
            if link.key not in self.outer_links:
                raise InputError(
                    f"style {style.name}: no outer link {link.key}; found {', '.join(self.outer_links) or 'none'}"
                )
            outer = self.outer_links[link.key]
            widths = (self.agents[link.source].width, self.agents[link.target].width)
            if (outer.source_width, outer.target_width) != widths:
                raise InputError(
                    f"outer link {link.key}: it maps width {outer.source_width} to {outer.target_width}, "
                    f"but {link.source} has width {widths[0]} and {link.target} has {widths[1]}"
                )

    def exchange(self, rounds: int, stage: Stage, send: Send | None = None) -> Any:
        """Run the rounds and return the last stage's result.

        `stage(role, round, inbox, last)` does one agent's work; `inbox[slot]` holds the newest message of every sample
        for that slot. `send(link, round, result)` turns a stage's result into a link's message (default: the outer
        link, applied to the vectors of all samples at once).
        """
        send = send or self.send
        mail: dict[str, Message] = {}
        for round_index in range(1, rounds + 1):
            for role in self.style.roles:
                last = round_index == rounds and role.name == self.style.speaker
                inbox = {link.slot: mail[link.key] for link in self.style.incoming(role.name) if link.key in mail}
                result = stage(role.name, round_index, inbox, last)
                if last:
                    return result
                for link in self.style.outgoing(role.name):
                    if round_index < rounds or not self.style.is_feedback(link):
                        mail[link.key] = send(link, round_index, result)
        raise InputError(f"--num_recursive_rounds {rounds}: expected at least 1")

    def send(self, link: Link, round_index: int, thoughts: Sequence[Tensor]) -> list[Tensor]:
        """Messages [m_i, T] of one link from the samples' vectors [m_i, S]."""
        vectors = self.outer_links[link.key](torch.cat(list(thoughts)))
        return list(vectors.split([len(thought) for thought in thoughts]))

    def activate(self, role: str) -> Agent:
        """The agent of a role, its model on its device."""
        agent = self.agents[role]
        if self.offload and self._resident is not agent.model:
            if self._resident is not None:
                self._resident.to("cpu")
            agent.model.to(agent.device)
            self._resident = agent.model
        return agent

    @torch.no_grad()
    def answer(
        self,
        questions: Sequence[str | Question],
        *,
        rounds: int = 3,
        latent_steps: int = 32,
        method: str = "latent",
        control: str | None = None,
        donors: Sequence[str | Question] | None = None,
        sampling: Sampling | None = None,
        num_rollouts: int = 1,
        seed: int = 42,
        enable_thinking: bool = False,
        tools: ToolUse | None = None,
        needs_suffix: NeedsSuffix | None = None,
    ) -> list[Answer]:
        """Answer questions as one batch.

        `method` is "latent", "text" (the same graph with text messages) or "single" (the speaker's model alone on a
        plain prompt). `control` replaces every message that a receiver gets: by nothing ("none"), zeros, noise of the
        same norm, or, for "shuffle", the message of the same link and round from the run of another question,
        `donors[i]`. Rollouts of a question share latents and the speaker's prefill.

        `tools` are run where the speaker writes its answer, if its role declares them; the plain prompt of "single"
        offers none. `needs_suffix(question, text)` looks at every finished answer, of any method: given a suffix, the
        answer goes on from it in its own context.
        """
        _check(method, control, rounds, latent_steps, num_rollouts)
        if method == "latent" and not self.linked:
            raise InputError("--method latent: the system was loaded without links; it can answer by text and single")
        if not questions:
            return []
        run = _Run(
            system=self,
            questions=[q if isinstance(q, Question) else Question(q, family=self.task) for q in questions],
            rounds=rounds,
            latent_steps=latent_steps,
            method=method,
            sampling=sampling or Sampling(),
            num_rollouts=num_rollouts,
            seed=seed,
            enable_thinking=enable_thinking,
            tools=tools,
            needs_suffix=needs_suffix,
        )
        if control == "shuffle":
            if donors is None or len(donors) != len(questions):
                raise InputError("control shuffle: expected one donor question for every question")
            wanted = [q if isinstance(q, Question) else Question(q, family=self.task) for q in donors]
            run.donor_mail = run.donated(wanted)
        run.control = control
        return run.answers()


def _check(method: str, control: str | None, rounds: int, latent_steps: int, num_rollouts: int) -> None:
    if method not in METHODS:
        raise InputError(f"--method {method}: expected one of {', '.join(METHODS)}")
    if control is not None and control not in CONTROLS:
        raise InputError(f"--latent_control {control}: expected one of {', '.join(CONTROLS)}")
    if control is not None and method != "latent":
        raise InputError(f"--latent_control {control}: only the latent method has latents, but the method is {method}")
    for flag, value, least in (
        ("num_recursive_rounds", rounds, 1),
        ("latent_length", latent_steps, 0),
        ("num_rollouts", num_rollouts, 1),
    ):
        if value < least:
            raise InputError(f"--{flag} {value}: expected at least {least}")


@dataclass
class _Run:
    """One batch of questions on its way through the rounds."""

    system: MultiAgentSystem
    questions: list[Question]
    rounds: int
    latent_steps: int
    method: str
    sampling: Sampling
    num_rollouts: int
    seed: int
    enable_thinking: bool
    tools: ToolUse | None = None
    needs_suffix: NeedsSuffix | None = None
    control: str | None = None
    donor_mail: dict[tuple[str, int], Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokens: list[dict[str, Counter[str]]] = [defaultdict(Counter) for _ in self.questions]
        self.seconds: dict[str, float] = defaultdict(float)

    def answers(self) -> list[Answer]:
        if self.method == "single":
            generations = self.speak(self.system.style.speaker, 1, {}, self.num_rollouts, single=True)
        else:
            generations = self.system.exchange(self.rounds, self.stage, self.send)
        share = {stage: seconds / len(self.questions) for stage, seconds in self.seconds.items()}
        found = []
        for question, rollouts, tokens in zip(self.questions, generations, self.tokens, strict=True):
            by_stage = {stage: {name: n for name, n in counts.items() if n} for stage, counts in tokens.items()}
            total = sum(tokens.values(), Counter())
            found.append(
                Answer(
                    question.id,
                    rollouts,
                    **{name: total[name] for name in COUNTS},
                    seconds=dict(share),
                    tokens=by_stage,
                )
            )
        return found

    def count(self, stage: str, name: str, numbers: Iterable[int]) -> None:
        """Add a number for each question to a stage's count `name`."""
        for tokens, number in zip(self.tokens, numbers, strict=True):
            tokens[stage][name] += int(number)

    def donated(self, donors: list[Question]) -> dict[tuple[str, int], Message]:
        """Every message of the donors' own, undisturbed run, by (link, round). Its cost is not the questions'."""
        mail: dict[tuple[str, int], Message] = {}
        run = _Run(
            self.system, donors, self.rounds, self.latent_steps, self.method, self.sampling, 1, self.seed, self.enable_thinking
        )  # fmt: skip

        def stage(role: str, round_index: int, inbox: dict[str, Message], last: bool) -> Any:
            return None if last else run.stage(role, round_index, inbox, last)

        def send(link: Link, round_index: int, thoughts: Any) -> Message:
            mail[link.key, round_index] = run.send(link, round_index, thoughts)
            return mail[link.key, round_index]

        self.system.exchange(self.rounds, stage, send)
        return mail

    def stage(self, role: str, round_index: int, inbox: dict[str, Message], last: bool) -> Any:
        if last:
            return self.speak(role, round_index, inbox, self.num_rollouts)
        if self.method == "text":
            return [written[0].text for written in self.speak(role, round_index, inbox, 1)]
        agent, batch = self.prepare(role, round_index, inbox)
        stage = f"{role}.think"
        self.count(stage, "prompt_tokens", batch.prompt_tokens)
        with self.timed(stage, agent):
            thoughts = agent.think(batch, self.latent_steps)
        self.count(stage, "latent_steps", [self.latent_steps] * len(thoughts))
        return list(thoughts)

    def speak(
        self, role: str, round_index: int, inbox: dict[str, Message], rollouts: int, single: bool = False
    ) -> list[list[Generation]]:
        agent, batch = self.prepare(role, round_index, inbox, single)
        # A text message is a draw of its own; the answer's draws depend on (seed, sample, rollout) alone.
        last = single or self.is_last(role, round_index)
        purpose = "text" if last else f"text:{role}:{round_index}"
        seeds = [[sample_seed(self.seed, q.id or q.text, r, purpose) for r in range(rollouts)] for q in self.questions]
        suffixes = None
        if last and self.needs_suffix:
            suffixes = [partial(self.needs_suffix, question) for question in self.questions]
        stage = f"{role}.speak"
        self.count(stage, "prompt_tokens", batch.prompt_tokens)
        with self.timed(stage, agent):
            generations = agent.speak(
                batch,
                self.sampling,
                seeds,
                tools=self.tools if last and not single else None,
                suffixes=suffixes,
                names=[q.id or str(index) for index, q in enumerate(self.questions)],
            )
        self.count(stage, "generated_tokens", (sum(len(written.tokens) for written in row) for row in generations))
        self.count(stage, "tool_tokens", (sum(written.tool_tokens for written in row) for row in generations))
        self.count(stage, "prompt_tokens", (sum(written.suffix_tokens for written in row) for row in generations))
        return generations

    def is_last(self, role: str, round_index: int) -> bool:
        return role == self.system.style.speaker and round_index == self.rounds

    def offered(self, role: str) -> tuple[str, ...]:
        return tuple(n for n in self.system.style.role(role).tools if self.tools and n in self.tools.box.names)

    def prepare(
        self, role: str, round_index: int, inbox: dict[str, Message], single: bool = False
    ) -> tuple[Agent, Batch]:
        """The agent with its prompts embedded: texts of the inbox go into the prompt, vectors into its slots.

        Prompts offer the tools that this stage can run: those of the role that this run has, in the stage that answers.
        """
        agent, style = self.system.activate(role), self.system.style
        tools = self.offered(role) if not single and self.is_last(role, round_index) else ()
        prompts = []
        for index, question in enumerate(self.questions):
            texts = {slot: message[index] for slot, message in inbox.items()} if self.method == "text" else {}
            parts = (
                single_parts(style, question)
                if single
                else user_parts(style, role, question, round_index, texts, tools)
            )
            system = system_text(style, role, question, tools)
            prompts.append(chat_ids(agent.tokenizer, system, parts, enable_thinking=self.enable_thinking))
        return agent, agent.embed(prompts, {} if self.method == "text" else inbox)

    def send(self, link: Link, round_index: int, result: Any) -> Message:
        if self.method == "text":
            return result
        if self.control == "shuffle":
            return self.donor_mail[link.key, round_index]
        messages = self.system.send(link, round_index, result)
        if self.control == "none":
            return [message[:0] for message in messages]
        if self.control == "zero":
            return [torch.zeros_like(message) for message in messages]
        if self.control == "noise":
            return [
                self.noise(message, q, link, round_index) for message, q in zip(messages, self.questions, strict=True)
            ]
        return messages

    def noise(self, message: Tensor, question: Question, link: Link, round_index: int) -> Tensor:
        """Gaussian vectors, each scaled to the norm of the true one."""
        seed = sample_seed(self.seed, question.id or question.text, 0, f"noise:{link.key}:{round_index}")
        drawn = torch.randn(message.shape, generator=torch.Generator().manual_seed(seed)).to(message)
        return drawn * (message.norm(dim=-1, keepdim=True) / drawn.norm(dim=-1, keepdim=True))

    def timed(self, stage: str, agent: Agent) -> _Timer:
        return _Timer(self.seconds, stage, agent.device)


class _Timer:
    """Adds the wall time of a block to `seconds[stage]`, waiting for the device where work is queued."""

    def __init__(self, seconds: dict[str, float], stage: str, device: torch.device) -> None:
        self.seconds, self.stage, self.device = seconds, stage, device

    def __enter__(self) -> None:
        self.start = self.now()

    def __exit__(self, *error: object) -> None:
        self.seconds[self.stage] += self.now() - self.start

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
