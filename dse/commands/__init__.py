"""The commands, one module each; heavy imports wait until a command runs."""

from dse.commands.compare import compare
from dse.commands.costs import costs
from dse.commands.doctor import doctor
from dse.commands.export import export
from dse.commands.extract import extract
from dse.commands.inspect import inspect
from dse.commands.merge import merge
from dse.commands.platform import platform
from dse.commands.profile import profile
from dse.commands.run import run
from dse.commands.schema import schema
from dse.commands.search import search
from dse.commands.split import split
from dse.commands.sweep import sweep
from dse.commands.validate import validate
from dse.commands.verify import verify
from dse.commands.zoo import zoo

COMMANDS = (
    run,
    inspect,
    profile,
    costs,
    search,
    sweep,
    split,
    extract,
    merge,
    validate,
    compare,
    export,
    verify,
    platform,
    doctor,
    schema,
    zoo,
)
