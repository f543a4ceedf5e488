"""Earlier records, in which the modules of `cab` were part of the attention and of the digest that is its code."""

import json
from pathlib import Path

from cab.records.identity import MOVED
from cab.records.record import with_checksum
from cab.registry.program import is_of_cab, joined, modules_of


def as_before(path: Path, cls: type) -> str:
    """Rewrite a record of the class as an earlier one, and return the stored code of its attention."""
    content = json.loads(path.read_text())
    modules = modules_of([cls, *(base.__module__ for base in cls.__mro__ if is_of_cab(base.__module__))])
    project = {name: digest for name, digest in content["program"]["project"].items() if name not in modules}
    # where code has moved since: the module that had it, with its digest of then
    moved = {name: before for name, (before, new, after) in MOVED.items() if project.get(new) == after}
    since = {new for _, new, _ in MOVED.values()}
    project = {name: digest for name, digest in project.items() if name not in since} | moved
    code = joined([cls.__qualname__, *map(repr, sorted(modules.items()))])
    content |= {"program": {"attention": modules, "project": project}, "attention_code": code}
    path.write_text(json.dumps(with_checksum(content)))
    return code
