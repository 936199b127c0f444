"""``dse schema``: the form of an experiment file, for editors."""

from __future__ import annotations

import json

import click

EPILOG = """\b
Example (VS Code and others then complete and check the file):
  dse schema > experiment.schema.json
  # first line of the YAML: # yaml-language-server: $schema=experiment.schema.json
"""


@click.command(epilog=EPILOG, short_help="Print the JSON Schema of experiment files.")
@click.option("--sweep", "of_sweep", is_flag=True, help="Of sweep files instead.")
@click.option("--json", "as_json", is_flag=True, help="No difference: the schema is JSON.")
def schema(as_json: bool, of_sweep: bool) -> None:
    """Print the JSON Schema of experiment files, or of sweep files."""
    from dse.config import json_schema, sweep_json_schema

    print(json.dumps(sweep_json_schema() if of_sweep else json_schema(), indent=1))
