"""Bundles: a mapping as files that run on the product, without this product.

What every bundle holds (``bundle.write_bundle`` makes it; a target need not)::

    README.md             made for this bundle; the target adds how to use it
    SHA256SUMS            of every other file, for ``sha256sum -c``
    mapping.yaml          the mapping; its stage files are named relative to it
    mapping.schema.json   JSON Schema of it
    plan.txt              mapping and hand-overs, one fact a line, for runners (``plan_text``)
    signatures.json       the whole model's signatures, inputs and outputs
    stages/*.tflite       the stages
    reference/            input_N.npy and output_N.npy: frames stacked along a new first axis

A *target* (``target.Target``, listed in ``registry.TARGETS``) adds what runs the stages somewhere.
It is used in this order, each call with the facts that are known by then:

1. ``check(order)``: refuse what can not work, before anything is written.
2. ``stage_bytes(name, data)``: change a stage file for its runtime (default: as it is).  Afterwards
   the common part checks that the chained stages still give the whole model's outputs.
3. ``write(deployment)``: write own files into ``deployment.folder`` and return a ``Manual``: how to
   use the bundle, in Markdown, and which files are executable.

Same run, same bytes: a target writes nothing that depends on time, paths or set order.
The folder is built under a hidden name and renamed; checksums and modes are set last.
"""
