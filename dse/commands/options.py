"""Options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from dse.commands.terminal import Terminal

F = TypeVar("F", bound=Callable[..., Any])


def output_options(command: F) -> F:
    """Add ``--json --quiet --debug`` and pass them on as ``terminal``."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")
    @click.option("--quiet", "-q", is_flag=True, help="No progress, only the result.")
    @click.option("--debug", is_flag=True, help="Show the trace of an error.")
    @functools.wraps(command)
    def wrapped(*args: Any, as_json: bool, quiet: bool, debug: bool, **kwargs: Any) -> Any:
        return command(*args, terminal=Terminal(as_json=as_json, quiet=quiet), **kwargs)

    return wrapped  # type: ignore[return-value]


def model_options(command: F) -> F:
    """Add ``--shape --signature``; ``model`` becomes the path of the model in that form.

    Also a model inside a bundle becomes a file, for the time of the command.
    """

    @click.option(
        "--shape",
        "shapes",
        multiple=True,
        metavar="INPUT=1x224x224x3",
        help="Sizes of an input whose sizes are open.",
    )
    @click.option("--signature", metavar="NAME", help="Work on this signature [the main subgraph].")
    @functools.wraps(command)
    def wrapped(
        *args: Any, model: Path, shapes: tuple[str, ...], signature: str | None, **kwargs: Any
    ) -> Any:
        if not shapes and signature is None and "!" not in str(model) and model.suffix == ".tflite":
            return command(*args, model=model, **kwargs)
        import tempfile

        from dse.shaping import open_model

        with tempfile.TemporaryDirectory(prefix="dse-") as folder:
            file = open_model(model, Path(folder), signature=signature, shapes=shapes)
            return command(*args, model=file.path, **kwargs)

    return wrapped  # type: ignore[return-value]


def experiment_options(command: F) -> F:
    """Add what names an experiment, and pass it on as ``experiment``."""

    @click.argument("config", required=False, type=click.Path(path_type=Path))
    @click.option(
        "--model",
        "-m",
        "models",
        multiple=True,
        metavar="[NAME=]FILE",
        help="A .tflite file, instead of CONFIG; several: all run once per frame.",
    )
    @click.option(
        "--link",
        "links",
        multiple=True,
        metavar="NAME/OUTPUT=NAME/INPUT",
        help="One of several models feeds another.",
    )
    @click.option(
        "--reshape", is_flag=True, help="Links may join other shapes with the same number of elements."
    )
    @click.option(
        "--shape",
        "shapes",
        multiple=True,
        metavar="[NAME/]INPUT=1x224x224x3",
        help="Size of an open input.",
    )
    @click.option("--signature", metavar="NAME", help="Work on this signature [the main subgraph].")
    @click.option("--platform", "-p", type=click.Path(path_type=Path), help="A platform file (YAML).")
    @click.option(
        "--set",
        "-s",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="One setting, e.g. search.time_s=5.",
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        config: Path | None,
        models: tuple[str, ...],
        links: tuple[str, ...],
        reshape: bool,
        shapes: tuple[str, ...],
        signature: str | None,
        platform: Path | None,
        settings: tuple[str, ...],
        **kwargs: Any,
    ) -> Any:
        if (config is None) != bool(models):
            raise click.UsageError(
                "expected either CONFIG (a YAML file) or --model FILE.tflite, "
                + ("got neither" if config is None else "got both")
            )
        if config is not None and config.suffix == ".tflite":
            raise click.UsageError(f"{config} is a model, not a YAML file: write --model {config}")

        def load(*more: str) -> Any:
            from dse.config import experiment_for_model, experiment_for_models, load_experiment

            every = [*settings, *more]
            several = len(models) > 1
            if links and not several:
                raise click.UsageError("--link needs several --model")
            if shapes and not several:
                every.append(f"shapes=[{', '.join(map(quote, shapes))}]")
            if signature is not None:
                every.append(f"signature={quote(signature)}")
            if platform is not None:
                every.append(f"platform={quote(str(platform.resolve()))}")
            if several:
                return experiment_for_models(models, links, every, shapes=shapes, reshape=reshape)
            if models:
                return experiment_for_model(Path(models[0]), every)
            return load_experiment(config, every)  # type: ignore[arg-type]

        return command(*args, load=load, **kwargs)

    return wrapped  # type: ignore[return-value]


def trace_options(command: F) -> F:
    """Add ``--trace --annotate``: what draws or profiles plans while they are measured."""
    annotate = click.option(
        "--annotate", is_flag=True, help="Tell Arm Streamline's daemon on this machine what every stage does."
    )
    trace = click.option(
        "--trace",
        "traces",
        multiple=True,
        type=click.Choice(["perfetto", "chrome"]),
        help="Draw the plan over time while it is measured [run: perfetto]; may be given twice.",
    )
    return trace(annotate(command))


def quote(text: str) -> str:
    """Write a text as a YAML value that is read as this text."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
