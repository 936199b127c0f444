"""Models of layers with sizes drawn by chance: ``python -m benchmarks.sample_layers FOLDER``.

To learn costs from: well-known architectures repeat a few shapes and leave most operators out.  These
models do not mean anything; they spread operators and sizes over what models are made of.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from dse.files import write_bytes
from dse.flatbuffer.encode import encode
from dse.zoo import convolutions, images, vectors
from dse.zoo.assemble import assemble
from dse.zoo.builder import Builder
from dse.zoo.draft import Draft, DraftTensor
from dse.zoo.quantize import quantize

N_IMAGES, N_IMAGES_INT8, N_SEQUENCES = 10, 4, 5
N_LAYERS = 36
MOST_ELEMENTS, MOST_MACS = 1 << 19, 40_000_000
CHANNELS = (3, 4, 8, 12, 16, 24, 32, 40, 48, 64, 96, 112, 128, 160, 192, 256, 320, 384, 512, 768)
PREFIX = "sample_"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write all models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for path in write_samples(parser.parse_args(arguments).folder):
        print(path)


def write_samples(folder: Path) -> list[Path]:
    """Write all models that are not there yet; return their paths."""
    kinds: tuple[tuple[str, int, Callable[[str, int], Draft]], ...] = (
        ("image", N_IMAGES, draw_image),
        ("image_int8", N_IMAGES_INT8, lambda name, seed: quantize(draw_image(name, seed, sampled=True))),
        ("sequence", N_SEQUENCES, draw_sequence),
    )
    paths = []
    for kind, count, draw in kinds:
        for number in range(count):
            path = folder / f"{PREFIX}{kind}-{number}.tflite"
            if not path.exists():
                write_bytes(path, encode(assemble(draw(path.stem, 100 * number + len(kind)))))
            paths.append(path)
    return paths


def draw_image(name: str, seed: int, *, sampled: bool = False) -> Draft:
    """Draw a model on images; with ``sampled`` only of operators that have an int8 form."""
    dice = random.Random(seed)
    net = Builder(name, "layers drawn by chance", seed=seed, sampled=sampled)
    x = images.image_input(
        net, "image", *(2 * [dice.choice((24, 56, 96, 112, 160))]), dice.choice((3, 4, 16))
    )
    earlier: list[DraftTensor] = [x]
    while len(earlier) < N_LAYERS:
        step = dice.choices(*zip(*(STEPS if not sampled else STEPS_INT8), strict=True))[0]
        made = step(net, dice, earlier, f"layer{len(earlier)}")
        if made is not None:
            earlier.append(made)
    used = {index for operator in net.finish([x]).operators for index in operator.inputs}
    return net.finish([tensor for tensor in earlier[1:] if tensor.index not in used])


def draw_sequence(name: str, seed: int) -> Draft:
    """Draw a model on sequences of vectors."""
    dice = random.Random(seed)
    net = Builder(name, "layers drawn by chance", seed=seed)
    x = net.add_input("vectors", (1, dice.choice((16, 48, 64, 128, 192)), dice.choice((64, 128, 256, 384))))
    for number in range(N_LAYERS // 2):
        label = f"layer{number}"
        rows, width = x.shape[1:]
        if number % 6 == 2:
            heads = dice.choice([n for n in (1, 2, 4, 8) if width % n == 0])
            split = vectors.reshape(net, x, (1, rows, heads, width // heads), name=f"{label}/split")
            turned = vectors.transpose(net, split, (0, 2, 1, 3), name=f"{label}/turned")
            scores = vectors.batch_matmul(net, turned, turned, name=f"{label}/scores", transpose_b=True)
            shares = vectors.softmax(net, scores, name=f"{label}/shares")
            mixed = vectors.batch_matmul(net, shares, turned, name=f"{label}/mixed")
            back = vectors.transpose(net, mixed, (0, 2, 1, 3), name=f"{label}/back")
            x = vectors.reshape(net, back, (1, rows, width), name=f"{label}/joined")
        elif number % 6 == 4:
            x = vectors.layer_norm(net, x, name=label)
        elif number % 6 == 5:
            op = dice.choice(("LOGISTIC", "TANH", "GELU"))
            x = vectors.gelu(net, x, name=label) if op == "GELU" else vectors.unary(net, op, x, name=label)
        elif number % 6 == 3:
            x = dice.choice((vectors.add, vectors.multiply, vectors.subtract))(net, x, x, name=label)
        else:
            units = dice.choice(
                [n for n in (32, 64, 128, 256, 384, 512, 768, 1024) if rows * n * width <= MOST_MACS]
            )
            x = vectors.fully_connected(net, x, units, name=label, activation=dice.choice(("NONE", "RELU")))
    return net.finish([x])


Step = Callable[[Builder, random.Random, list[DraftTensor], str], DraftTensor | None]


def _fits(x: DraftTensor, filters: int, kernel: int, stride: int) -> bool:
    pixels = math.ceil(x.shape[1] / stride) * math.ceil(x.shape[2] / stride)
    return pixels * filters <= MOST_ELEMENTS and pixels * filters * kernel**2 * x.shape[3] <= MOST_MACS


def _convolution(
    net: Builder, dice: random.Random, earlier: list[DraftTensor], name: str
) -> DraftTensor | None:
    x = dice.choice(earlier[-6:])
    kernel = dice.choice((1, 1, 1, 3, 3, 5, 7))
    stride = dice.choice((1, 1, 1, 2)) if x.shape[1] > 6 else 1
    filters = [n for n in CHANNELS if _fits(x, n, kernel, stride)]
    if not filters:
        return None
    return convolutions.conv2d(
        net,
        x,
        dice.choice(filters),
        kernel,
        name=name,
        stride=stride,
        activation=dice.choice(("RELU", "RELU6")),
    )


def _depthwise(net: Builder, dice: random.Random, earlier: list[DraftTensor], name: str) -> DraftTensor:
    x = dice.choice(earlier[-6:])
    stride = dice.choice((1, 1, 2)) if x.shape[1] > 6 else 1
    return convolutions.depthwise_conv2d(net, x, dice.choice((3, 3, 5)), name=name, stride=stride)


def _pool(net: Builder, dice: random.Random, earlier: list[DraftTensor], name: str) -> DraftTensor | None:
    x = dice.choice(earlier[-6:])
    if x.shape[1] < 4:
        return None
    pool = dice.choice((images.max_pool, images.average_pool))
    kernel = dice.choice((2, 3))
    return pool(net, x, kernel, dice.choice((1, 2)), name=name)


def _pair(net: Builder, dice: random.Random, earlier: list[DraftTensor], name: str) -> DraftTensor:
    x = dice.choice(earlier[-6:])
    others = [other for other in earlier if other.shape == x.shape]
    op = vectors.add if net.sampled else dice.choice((vectors.add, vectors.multiply, vectors.subtract))
    return op(net, x, dice.choice(others), name=name)


def _join(net: Builder, dice: random.Random, earlier: list[DraftTensor], name: str) -> DraftTensor | None:
    x = dice.choice(earlier[-6:])
    others = [o for o in earlier if o.shape[:3] == x.shape[:3] and o.shape[3] + x.shape[3] <= CHANNELS[-1]]
    return vectors.concatenate(net, [x, dice.choice(others)], 3, name=name) if others else None


def _enlarge(net: Builder, dice: random.Random, earlier: list[DraftTensor], name: str) -> DraftTensor | None:
    x = dice.choice(earlier[-6:])
    if 4 * math.prod(x.shape) > MOST_ELEMENTS:
        return None
    filters = [
        n
        for n in CHANNELS
        if 4 * _area(x) * n <= MOST_ELEMENTS and 4 * _area(x) * n * x.shape[3] <= MOST_MACS
    ]
    kind = dice.randrange(3)
    if kind == 0 and filters:
        return convolutions.transpose_conv2d(net, x, dice.choice(filters), 2, name=name)
    return (images.resize_bilinear if kind == 1 else images.resize_nearest)(net, x, 2, name=name)


def _other(net: Builder, dice: random.Random, earlier: list[DraftTensor], name: str) -> DraftTensor:
    x = dice.choice(earlier[-6:])
    kind = dice.randrange(4)
    if kind == 0:
        return images.pad(net, x, 1, dice.choice((0, 1)), name=name)
    if kind == 1:
        return vectors.softmax(net, x, name=name)
    if kind == 2:
        return vectors.transpose(net, x, (0, 2, 1, 3), name=name)
    return vectors.unary(net, dice.choice(("LOGISTIC", "TANH")), x, name=name)


def _area(x: DraftTensor) -> int:
    return x.shape[1] * x.shape[2]


STEPS: tuple[tuple[Step, int], ...] = (
    (_convolution, 10),
    (_depthwise, 5),
    (_pool, 3),
    (_pair, 3),
    (_join, 2),
    (_enlarge, 2),
    (_other, 3),
)
STEPS_INT8: tuple[tuple[Step, int], ...] = ((_convolution, 8), (_depthwise, 4), (_pair, 2))


if __name__ == "__main__":
    main()
