"""How the stages of a lane are joined: who feeds whom, who wakes whom, and when one may go on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from dse.pipeline.engine import Array
from dse.pipeline.nodes import Order, Sink, Source, StageNode, Unit
from dse.pipeline.plan import LanePlan, Port, StagePlan, final_stages, levels


class Network:
    """The stages of a lane, joined, with a thread for each set of cores.

    Parameters
    ----------
    plan
        The lane.
    inputs, outputs
        Of the model.
    frames
        Prepared frames.
    queue_depth
        Frames that may wait in front of a stage.
    rings
        By stage, the slots of its outputs, where it has to use given ones.
    """

    def __init__(
        self,
        plan: LanePlan,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        frames: Sequence[Sequence[Array]],
        queue_depth: int,
        rings: Mapping[int, list[tuple[Array, ...]]] | None = None,
    ) -> None:
        self.plan = plan
        rings = rings or {}
        self._outputs = tuple(outputs)
        self.source = Source(inputs, frames)
        self.sink = Sink()
        self.nodes = tuple(
            StageNode(number, stage, ring_length(plan, outputs, number, queue_depth), rings.get(number))
            for number, stage in enumerate(plan.stages)
        )
        self._connect(inputs)
        self.units = tuple(
            Unit(_cores(plan.stages[members[0]]), [self.nodes[m] for m in members]) for members in plan.units
        )
        self._arrange_wake_ups()

    def outputs_of(self, frame: int) -> list[Array]:
        """Return the slots with the model's outputs for a frame that is out."""
        return [made.slots[frame % made.n_slots][at] for made, at in self._results]

    def frame_is_out(self, frame: int) -> bool:
        """Whether a frame has passed all stages that it must pass."""
        return all(final.done > frame for final in self.finals)

    def wake_all(self) -> None:
        """Make every thread look again."""
        for unit in self.units:
            unit.gate.put(None)
        self.sink.gate.put(None)

    def ready(self, node: StageNode, order: Order) -> bool:
        """Whether a stage can start its next frame."""
        return self.ready_for(node, order, node.done)

    def ready_for(self, node: StageNode, order: Order, frame: int) -> bool:
        """Whether a stage can start a frame: its next, or a later one while others are under way."""
        if frame >= order.limit:
            return False
        for source in node.sources:
            if source.done <= frame:
                return False
        oldest = frame - node.n_slots
        for user in node.users:
            if user.taken <= oldest:
                return False
        # Outputs leave together, so a quick branch may not run ahead of a slow one.
        if node.is_final and min(final.done for final in self.finals) <= oldest:
            return False
        if order.in_flight is not None and self.source in node.sources:
            return all(frame - final.done < order.in_flight for final in self.finals)
        return True

    def _connect(self, inputs: Sequence[Port]) -> None:
        position = {port.tensor: number for number, port in enumerate(inputs)}
        users: dict[int, list[StageNode]] = {}
        for node in self.nodes:
            sources: list[StageNode | Source] = []
            feeds: list[tuple[StageNode | Source, int]] = []
            for port, maker in zip(node.plan.inputs, self.plan.sources(node.index)):
                if maker is None:
                    feeds.append((self.source, position[port.tensor]))
                    sources.append(self.source)
                else:
                    made = self.nodes[maker]
                    tensors = [output.tensor for output in made.plan.outputs]
                    feeds.append((made, tensors.index(port.tensor)))
                    sources.append(made)
                    users.setdefault(maker, []).append(node)
            node.sources = tuple(dict.fromkeys(sources))
            node.feeds = tuple(feeds)
        for node in self.nodes:
            node.users = tuple(dict.fromkeys(users.get(node.index, ())))
        self.finals = tuple(self.nodes[index] for index in final_stages(self.plan, self._outputs))
        for final in self.finals:
            final.is_final = True
            final.users += (self.sink,)
        producer = self.plan.producer
        self._results: list[tuple[StageNode | Source, int]] = []
        for port in self._outputs:
            if port.tensor in producer:
                made = self.nodes[producer[port.tensor]]
                tensors = [output.tensor for output in made.plan.outputs]
                self._results.append((made, tensors.index(port.tensor)))
            else:
                self._results.append((self.source, position[port.tensor]))

    def _arrange_wake_ups(self) -> None:
        home = {node: unit for unit in self.units for node in unit.stages}
        entering = [home[node] for node in self.nodes if self.source in node.sources]
        self.entering_units = tuple(dict.fromkeys(entering))
        self.final_units = tuple(dict.fromkeys(home[node] for node in self.finals))
        for node in self.nodes:
            own = home[node]
            above = [home[made] for made in node.sources if isinstance(made, StageNode)]
            below = [home[user] for user in node.users if isinstance(user, StageNode)]
            if node.is_final:
                below += [home[final] for final in self.finals]
            node.wakes_on_take = tuple(unit for unit in dict.fromkeys(above) if unit is not own)
            node.wakes_on_done = tuple(unit for unit in dict.fromkeys(below) if unit is not own)
            if node in self.finals:
                node.wakes_on_done += (self.sink,)
                node.wakes_entering = tuple(unit for unit in dict.fromkeys(entering) if unit is not own)


def _cores(stage: StagePlan) -> tuple[int, ...]:
    """Cores of a stage's thread: those that it names, or any."""
    return tuple(sorted(stage.cores or os.sched_getaffinity(0)))


def ring_length(plan: LanePlan, outputs: Sequence[Port], stage: int, queue_depth: int) -> int:
    """Slots of a stage's ring: a tensor that skips stages waits while the frame passes them."""
    level = levels(plan)
    distance = [
        level[number] - level[stage]
        for number in range(len(plan.stages))
        if stage in [source for source in plan.sources(number) if source is not None]
    ]
    if stage in final_stages(plan, outputs):
        distance.append(1 + max(level) - level[stage])
    return queue_depth * max(distance) + 2
