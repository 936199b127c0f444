"""The architectures of the zoo, with where they and their published figures come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from dse.zoo.alexnet import draw_alexnet
from dse.zoo.bert import bert_macs, draw_bert_encoder, draw_bert_encoder_int8
from dse.zoo.entries import Draw, Parameter, ZooEntry
from dse.zoo.googlenet import draw_googlenet
from dse.zoo.inception import draw_inception_v3
from dse.zoo.mobilenet import (
    draw_mobilenet_v1,
    draw_mobilenet_v1_int8,
    draw_mobilenet_v2,
    draw_mobilenet_v2_int8,
)
from dse.zoo.recurrent import draw_streaming_lstm, lstm_macs
from dse.zoo.resnet import draw_resnet50
from dse.zoo.squeezenet import draw_squeezenet
from dse.zoo.two_stream import draw_two_stream, two_stream_macs
from dse.zoo.unet import draw_unet, unet_macs


def _image(size: int, classes: int = 1000, smallest: int = 32) -> dict[str, Parameter]:
    return {
        "size": Parameter(size, smallest, 1024, "height and width of the image"),
        "classes": Parameter(classes, 2, 100_000, "number of classes"),
    }


_WIDTH = Parameter(100, 10, 400, "width multiplier in percent")

_ENTRIES = (
    ZooEntry(
        name="alexnet",
        description="image classifier: a chain of large layers, grouped convolutions",
        settings=_image(227, smallest=67),
        source="Krizhevsky et al.: ImageNet Classification with Deep CNNs, NIPS 2012",
        draw=draw_alexnet,
        published_macs=724_000_000,
        published_parameters=61_000_000,
        macs_source="Sze et al.: Efficient Processing of Deep Neural Networks, Proc. IEEE 2017, table II",
    ),
    ZooEntry(
        name="squeezenet",
        description="image classifier: fire modules (SqueezeNet 1.0)",
        settings=_image(224, smallest=47),
        source="Iandola et al.: SqueezeNet, arXiv:1602.07360",
        draw=draw_squeezenet,
        published_macs=820_000_000,
        published_parameters=1_248_424,
        macs_source="torchvision documentation, squeezenet1_0",
    ),
    ZooEntry(
        name="googlenet",
        description="image classifier: nine inception modules of four branches",
        settings=_image(224),
        source="Szegedy et al.: Going Deeper with Convolutions, CVPR 2015",
        draw=draw_googlenet,
        published_macs=1_500_000_000,
        published_parameters=7_000_000,
        macs_source="the paper, sections 1 and 6, counting the first convolution as 34 M for 2.7 K weights "
        "(a 7 x 1 and a 1 x 7 pass, table 1); with the full kernel of the released model it is 118 M; "
        "parameters: Sze et al., Proc. IEEE 2017, table II",
    ),
    ZooEntry(
        name="resnet50",
        description="image classifier: bottleneck blocks with skips",
        settings=_image(224),
        source="He et al.: Deep Residual Learning for Image Recognition, CVPR 2016",
        draw=draw_resnet50,
        published_macs=3_800_000_000,
        published_parameters=25_500_000,
        macs_source="the paper, table 1",
    ),
    ZooEntry(
        name="inception_v3",
        description="image classifier: branches of different depth, 1x7 and 7x1 kernels",
        settings=_image(299, smallest=75),
        source="Szegedy et al.: Rethinking the Inception Architecture, CVPR 2016",
        draw=draw_inception_v3,
        published_macs=5_710_000_000,
        published_parameters=23_900_000,
        macs_source="torchvision documentation, inception_v3; parameters: Keras documentation",
    ),
    ZooEntry(
        name="mobilenet_v1",
        description="image classifier: depthwise separable convolutions, ReLU6",
        settings={**_image(224), "width": _WIDTH},
        source="Howard et al.: MobileNets, arXiv:1704.04861",
        draw=draw_mobilenet_v1,
        published_macs=569_000_000,
        published_parameters=4_200_000,
        macs_source="the paper, table 6",
    ),
    ZooEntry(
        name="mobilenet_v2",
        description="image classifier: inverted residuals, ReLU6",
        settings={**_image(224), "width": _WIDTH},
        source="Sandler et al.: MobileNetV2, CVPR 2018",
        draw=draw_mobilenet_v2,
        published_macs=300_000_000,
        published_parameters=3_400_000,
        macs_source="the paper, table 4",
    ),
    ZooEntry(
        name="bert_encoder",
        description="text encoder: self-attention over a sequence of token numbers",
        settings={
            "hidden": Parameter(768, 2, 16_384, "H, features per token"),
            "sequence": Parameter(128, 1, 8_192, "S, tokens"),
            "layers": Parameter(4, 1, 96, "L, encoder layers"),
            "heads": Parameter(8, 1, 256, "A, attention heads; divides hidden"),
            "intermediate": Parameter(3072, 1, 65_536, "I, features inside the feed-forward part"),
            "vocab": Parameter(2048, 2, 1_000_000, "rows of the token table (published: 30522)"),
            "mask": Parameter(0, 0, 1, "1: a second input that is 0 for padding"),
        },
        source="Devlin et al.: BERT, NAACL 2019",
        draw=draw_bert_encoder,
        macs_source="L (4 S H^2 + 2 S^2 H + 2 S H I), the matrix products of the paper's encoder",
        macs=bert_macs,
    ),
    ZooEntry(
        name="unet",
        description="segmentation: encoder and decoder with long skips",
        settings={
            "size": Parameter(128, 16, 1024, "height and width of the image"),
            "base": Parameter(16, 1, 128, "channels at the top (published: 64)"),
            "depth": Parameter(4, 1, 6, "how often the image is halved"),
            "classes": Parameter(2, 2, 1000, "classes per pixel"),
        },
        source="Ronneberger et al.: U-Net, MICCAI 2015",
        draw=draw_unet,
        macs_source="the sum over the paper's layers, with padding",
        macs=unet_macs,
    ),
    ZooEntry(
        name="streaming_lstm",
        description="stream of feature vectors: LSTM layers with state between frames",
        settings={
            "steps": Parameter(8, 1, 1000, "feature vectors per invocation"),
            "features": Parameter(40, 1, 4096, "values in a feature vector"),
            "units": Parameter(128, 1, 4096, "units of each layer"),
            "layers": Parameter(2, 1, 32, "LSTM layers"),
            "classes": Parameter(12, 2, 10_000, "classes per step"),
        },
        source="Hochreiter, Schmidhuber: Long Short-Term Memory, Neural Computation 1997",
        draw=draw_streaming_lstm,
        macs_source="per step and layer 4 U (inputs + U), the paper's four gates",
        macs=lstm_macs,
    ),
    ZooEntry(
        name="two_stream",
        description="video: two inputs (frame, optical flow), two outputs (action, motion)",
        settings={
            "size": Parameter(112, 32, 512, "height and width of frame and flow"),
            "base": Parameter(32, 1, 256, "channels of the first layer"),
            "classes": Parameter(101, 2, 10_000, "number of classes"),
        },
        source="Simonyan, Zisserman: Two-Stream Convolutional Networks, NIPS 2014",
        draw=draw_two_stream,
        macs_source="the sum over the layers",
        macs=two_stream_macs,
    ),
)


def _int8(entry: ZooEntry, draw: Draw) -> ZooEntry:
    return replace(
        entry,
        name=f"{entry.name}_int8",
        description=f"{entry.description}; int8, scales per channel",
        draw=draw,
    )


def _all_entries() -> dict[str, ZooEntry]:
    entries = {entry.name: entry for entry in _ENTRIES}
    for name, draw_int8 in (
        ("mobilenet_v1", draw_mobilenet_v1_int8),
        ("mobilenet_v2", draw_mobilenet_v2_int8),
        ("bert_encoder", draw_bert_encoder_int8),
    ):
        entry = _int8(entries[name], draw_int8)
        entries[entry.name] = entry
    return entries


ZOO: Mapping[str, ZooEntry] = MappingProxyType(_all_entries())
"""All architectures by name."""
