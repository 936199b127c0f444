"""The BERT encoder: token embeddings and layers of self-attention."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dse.errors import InputError
from dse.flatbuffer.records import Options
from dse.flatbuffer.schema import enum_value
from dse.zoo.builder import Builder
from dse.zoo.draft import Draft, DraftTensor
from dse.zoo.quantize import quantize
from dse.zoo.vectors import (
    add,
    batch_matmul,
    fully_connected,
    gather_rows,
    gelu,
    layer_norm,
    multiply,
    reshape,
    softmax,
    subtract,
    transpose,
)

MASKED_SCORE = -10000.0
# Large enough to hide padding (e^-16), small enough to leave steps to the scores in 8 bits.
MASKED_SCORE_INT8 = -16.0
SAMPLE_FRAMES = 2


def bert_macs(parameters: Mapping[str, int]) -> int:
    """Return the multiply-accumulates of all matrix products of the encoder.

    Per layer: four projections of S x H by H x H, scores and context of S x S by H, and two matrices
    of H x I: ``4 S H^2 + 2 S^2 H + 2 S H I``.
    """
    hidden, sequence = parameters["hidden"], parameters["sequence"]
    projections = 4 * sequence * hidden**2
    attention = 2 * sequence**2 * hidden
    feed_forward = 2 * sequence * hidden * parameters["intermediate"]
    return parameters["layers"] * (projections + attention + feed_forward)


def draw_bert_encoder(
    parameters: Mapping[str, int], seed: int, *, sampled: bool = False, masked_score: float = MASKED_SCORE
) -> Draft:
    """Draw a BERT encoder for one sequence.

    Parameters
    ----------
    parameters
        ``hidden`` H, ``sequence`` S, ``layers`` L, ``heads`` A, ``intermediate`` I, ``vocab`` (rows of
        the token table), ``mask`` (1: a second input, int32, is 0 where a token is padding).
    seed
        Seed of the weights.
    sampled
        Whether to work out sample frames, which quantisation needs.
    masked_score
        What is added to the scores of padding.

    Notes
    -----
    Input: token numbers, int32 (1, S), each below ``vocab``.  Output: (1, S, H).  The segment
    embedding of a single sentence is one row for all positions: it is part of the position table.
    There is no pooler: it belongs to the tasks on top.

    Raises
    ------
    InputError
        ``heads`` does not divide ``hidden``.

    References
    ----------
    J. Devlin et al.: BERT: Pre-training of Deep Bidirectional Transformers for Language
    Understanding, NAACL 2019.
    """
    hidden, sequence, heads = parameters["hidden"], parameters["sequence"], parameters["heads"]
    if hidden % heads:
        raise InputError(
            f"bert_encoder: hidden = {hidden} must be a multiple of heads = {heads}: "
            "each head gets an equal share of the features"
        )
    shape_text = " ".join(
        f"{letter}={parameters[key]}"
        for letter, key in (
            ("H", "hidden"),
            ("S", "sequence"),
            ("L", "layers"),
            ("A", "heads"),
            ("I", "intermediate"),
        )
    )
    net = Builder("bert_encoder", f"BERT encoder {shape_text}", seed=seed, sampled=sampled)
    vocab = parameters["vocab"]
    sample = ((net.random("sample_ids", (SAMPLE_FRAMES, sequence)) + 1) / 2 * vocab).astype(np.int32)
    ids = net.add_input("input_ids", (1, sequence), np.int32, sample=sample)
    mask = None
    if parameters["mask"]:
        given = np.ones((SAMPLE_FRAMES, sequence), dtype=np.int32)
        given[-1, sequence - sequence // 4 :] = 0
        mask = net.add_input("input_mask", (1, sequence), np.int32, sample=given)
    x = _embeddings(net, ids, vocab, hidden)
    penalty = None if mask is None else _mask_penalty(net, mask, masked_score)
    for layer in range(parameters["layers"]):
        with net.scope(f"encoder/layer_{layer}"):
            x = _layer(net, x, heads, parameters["intermediate"], penalty)
    return net.finish([x])


def draw_bert_encoder_int8(parameters: Mapping[str, int], seed: int, *, sampled: bool = True) -> Draft:
    """Draw the encoder in int8, see ``draw_bert_encoder`` and ``quantize``; always with samples."""
    del sampled
    return quantize(draw_bert_encoder(parameters, seed, sampled=True, masked_score=MASKED_SCORE_INT8))


def _embeddings(net: Builder, ids: DraftTensor, vocab: int, hidden: int) -> DraftTensor:
    sequence = ids.shape[1]
    with net.scope("embeddings"):
        table = net.constant(net.random("word_table", (vocab, hidden)), "word_table")
        words = gather_rows(net, table, ids, name="words")
        positions = net.constant(0.5 * net.random("position_table", (1, sequence, hidden)), "position_table")
        return layer_norm(net, add(net, words, positions, name="sum"), name="layer_norm")


def _mask_penalty(net: Builder, mask: DraftTensor, masked_score: float) -> DraftTensor:
    """Return what is added to the scores: 0 for a token, very negative for padding."""
    sequence = mask.shape[1]
    with net.scope("mask"):
        cast = net.emit(
            "CAST",
            [mask],
            "cast",
            mask.shape,
            options=Options(
                "CastOptions",
                {
                    "in_data_type": enum_value("TensorType", "INT32"),
                    "out_data_type": enum_value("TensorType", "FLOAT32"),
                },
            ),
            evaluate=lambda values: values.astype(np.float64),
        )
        rows = reshape(net, cast, (1, 1, 1, sequence), name="rows")
        inverted = subtract(net, net.constant(1.0, "one"), rows, name="inverted")
        return multiply(net, inverted, net.constant(masked_score, "masked_score"), name="penalty")


def _layer(
    net: Builder, x: DraftTensor, heads: int, intermediate: int, penalty: DraftTensor | None
) -> DraftTensor:
    hidden = x.shape[-1]
    with net.scope("attention"):
        attended = _attention(net, x, heads, penalty)
        projected = fully_connected(net, attended, hidden, name="output")
        x = layer_norm(net, add(net, projected, x, name="add"), name="layer_norm")
    widened = fully_connected(net, x, intermediate, name="intermediate")
    activated = gelu(net, widened, name="gelu")
    narrowed = fully_connected(net, activated, hidden, name="output")
    return layer_norm(net, add(net, narrowed, x, name="add"), name="layer_norm")


def _attention(net: Builder, x: DraftTensor, heads: int, penalty: DraftTensor | None) -> DraftTensor:
    batch, sequence, hidden = x.shape
    size = hidden // heads

    def by_head(name: str) -> DraftTensor:
        flat = fully_connected(net, x, hidden, name=name)
        split = reshape(net, flat, (batch, sequence, heads, size), name=f"{name}_heads")
        return transpose(net, split, (0, 2, 1, 3), name=f"{name}_transposed")

    query, key, value = by_head("query"), by_head("key"), by_head("value")
    scores = batch_matmul(net, query, key, transpose_b=True, name="scores")
    factor = net.constant(float(1 / np.sqrt(size)), "score_factor")
    scores = multiply(net, scores, factor, name="scaled_scores")
    if penalty is not None:
        scores = add(net, scores, penalty, name="masked_scores")
    probabilities = softmax(net, scores, name="probabilities")
    context = batch_matmul(net, probabilities, value, name="context")
    joined = transpose(net, context, (0, 2, 1, 3), name="context_transposed")
    return reshape(net, joined, (batch, sequence, hidden), name="context_joined")
