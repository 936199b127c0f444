"""Every architecture loads and runs in LiteRT, computes what it should, and moves with its input."""

from __future__ import annotations

import numpy as np
import pytest

from dse.flatbuffer.encode import encode
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import model_from_bytes
from dse.inputs import make_frames
from dse.zoo import ZOO
from dse.zoo.assemble import assemble
from dse.zoo.builder import Builder
from dse.zoo.recurrent import lstm
from dse.zoo.registry import draw

SMALL = {
    "alexnet": {"size": 67, "classes": 10},
    "squeezenet": {"size": 64, "classes": 20},
    "googlenet": {"size": 65, "classes": 20},
    "resnet50": {"size": 63, "classes": 20},
    "inception_v3": {"size": 96, "classes": 20},
    "mobilenet_v1": {"size": 96, "width": 50, "classes": 20},
    "mobilenet_v2": {"size": 97, "width": 50, "classes": 20},
    "bert_encoder": {
        "hidden": 48,
        "sequence": 12,
        "layers": 3,
        "heads": 4,
        "intermediate": 96,
        "vocab": 50,
    },
    "unet": {"size": 48, "base": 4, "depth": 3, "classes": 3},
    "streaming_lstm": {"steps": 5, "features": 12, "units": 16, "classes": 6},
    "two_stream": {"size": 51, "base": 8, "classes": 20},
}


STYLES = ("smooth", "signed", "noise")


def sample_frames(draft):
    inputs = [draft.tensors[index] for index in draft.inputs]
    return [[x.sample[k : k + 1].astype(x.dtype) for x in inputs] for k in range(len(inputs[0].sample))]


def frames_for(draft, n, style, seed=0):
    graph = build_graph(model_from_bytes(encode(assemble(draft))))
    return make_frames(graph, n, seed, style=style)


def relative_change(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(a), np.linalg.norm(b)))


def test_every_architecture_has_a_small_form():
    assert set(SMALL) == {name for name, entry in ZOO.items() if not name.endswith("_int8")}


@pytest.mark.parametrize("name", SMALL)
def test_runtime_computes_what_the_arithmetic_says_and_outputs_move(name, run_draft):
    draft = ZOO[name].draw({**ZOO[name].parameters, **SMALL[name]}, 3, sampled=True)
    samples = sample_frames(draft)
    moving = [frame for style in STYLES for frame in frames_for(draft, 3, style)]
    answers = run_draft(draft, [*samples, *moving])
    for number, index in enumerate(draft.outputs):
        found = [answer[number] for answer in answers]
        assert np.isfinite(found).all()
        expected = draft.tensors[index].sample
        atol = 1e-3 * np.abs(expected).max()
        np.testing.assert_allclose(np.concatenate(found[: len(samples)]), expected, atol=atol)
        for style in range(len(STYLES)):
            start = len(samples) + 3 * style
            a, b, c = found[start : start + 3]
            # Far above what another order of additions changes (1e-5).
            assert max(relative_change(a, b), relative_change(a, c)) > 0.02, STYLES[style]
            assert a.std() > 0


def test_full_mobilenet_v2_runs_and_moves(run_draft):
    draft = draw("mobilenet_v2")
    (first,), (second,) = run_draft(draft, frames_for(draft, 2, "smooth"))
    assert first.shape == (1, 1000)
    assert first.sum() == pytest.approx(1, abs=1e-4)
    assert relative_change(first, second) > 0.1
    assert first.max() < 0.9  # no class is certain, so every layer can be seen in the answer


def test_mask_hides_padding(run_draft):
    draft = draw("bert_encoder", {**SMALL["bert_encoder"], "mask": 1})
    ids = np.arange(12, dtype=np.int32)[None]
    mask = np.array([[1] * 8 + [0] * 4], dtype=np.int32)
    changed = ids.copy()
    changed[0, 8:] += 20
    hidden = run_draft(draft, [[ids, mask], [changed, mask]])
    np.testing.assert_allclose(hidden[0][0][:, :8], hidden[1][0][:, :8], atol=1e-5)
    seen = run_draft(draft, [[ids, np.ones_like(mask)], [changed, np.ones_like(mask)]])
    assert relative_change(seen[0][0][:, :8], seen[1][0][:, :8]) > 0.01


def test_lstm_goes_on_where_the_last_frame_ended(run_draft):
    draft = draw("streaming_lstm", SMALL["streaming_lstm"])
    frame = frames_for(draft, 1, "noise")[0]
    again = run_draft(draft, [frame, frame], stream=True)
    assert relative_change(again[0][0], again[1][0]) > 0.01
    reset = run_draft(draft, [frame, frame])
    np.testing.assert_array_equal(reset[0][0], reset[1][0])


def test_lstm_over_two_frames_equals_one_of_twice_the_steps(run_draft):
    def layers(steps):
        net = Builder("lstm", "two layers", seed=2)
        x = net.add_input("features", (1, steps, 6))
        return net.finish([lstm(net, lstm(net, x, 9, name="a"), 7, name="b")])

    whole = np.random.default_rng(0).normal(size=(1, 10, 6)).astype(np.float32)
    halves = run_draft(layers(5), [[whole[:, :5]], [whole[:, 5:]]], stream=True)
    once = run_draft(layers(10), [[whole]])[0][0]
    np.testing.assert_allclose(np.concatenate([half[0] for half in halves], axis=1), once, atol=1e-6)
    assert np.abs(once).max() > 0.05
