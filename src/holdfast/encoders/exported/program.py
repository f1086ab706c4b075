"""Everything that an exported program may contain, and checks of its archive before torch reads it."""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from holdfast.core.errors import HoldfastError, first_line
from holdfast.encoders.loading.weights import check_expansion

# Rules for JSON that lists everything a document may hold: a rule returns the value to hand on, or refuses it.
#
# A rule takes a value and the place where it stands. What no rule names is refused, whatever it is called; what a rule
# replaces is never handed on.

Rule = Callable[[Any, str], Any]
WIDEST = 2**63


class UnlistedError(Exception):
    """What stands in a document, and where, that no rule names."""


def refuse(value: Any, place: str) -> UnlistedError:
    """Error for a value that no rule allows."""
    return UnlistedError(f"{place or 'the document'} is {repr(value)[:60]}")


def integer(value: Any, place: str) -> int:
    """Check an integer of at most 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > WIDEST:
        raise refuse(value, place)
    return value


def boolean(value: Any, place: str) -> bool:
    """Check a truth value."""
    if not isinstance(value, bool):
        raise refuse(value, place)
    return value


def real(value: Any, place: str) -> Any:
    """Check a number, or one of torch's words for infinity and NaN."""
    if value in ("Infinity", "-Infinity", "NaN") or isinstance(value, float):
        return value
    return integer(value, place)


def text(pattern: str) -> Rule:
    """Return the rule for text that is ``pattern`` from end to end."""
    known = re.compile(pattern, re.ASCII)

    def rule(value: Any, place: str) -> str:
        if not isinstance(value, str) or not known.fullmatch(value):
            raise refuse(value, place)
        return value

    return rule


def constant(only: Any) -> Rule:
    """Return the rule for a value that can only be ``only``."""

    def rule(value: Any, place: str) -> Any:
        if type(value) is not type(only) or value != only:
            raise refuse(value, place)
        return value

    return rule


def replaced(by: Any) -> Rule:
    """Rule that replaces an unused value by ``by``."""
    return lambda value, place: by


def optional(part: Rule) -> Rule:
    """Return the rule for a ``part`` or null."""
    return lambda value, place: None if value is None else part(value, place)


def several(part: Rule) -> Rule:
    """Return the rule for a list of ``part``."""

    def rule(value: Any, place: str) -> list[Any]:
        if not isinstance(value, list):
            raise refuse(value, place)
        return [part(item, f"{place}[{position}]") for position, item in enumerate(value)]

    return rule


def mapping(key: Rule, part: Rule) -> Rule:
    """Rule for an object."""

    def rule(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise refuse(value, place)
        return {key(name, f"a name in {place}"): part(item, f"{place}.{name}") for name, item in value.items()}

    return rule


def record(**fields: Rule) -> Rule:
    """Return the rule for an object with some of ``fields`` and no other."""

    def rule(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise refuse(value, place)
        for name in value:
            if name not in fields:
                raise UnlistedError(f"{place or 'the document'} has an entry {name[:40]!r}")
        return {name: fields[name](item, f"{place}.{name}".lstrip(".")) for name, item in value.items()}

    return rule


def variant(**kinds: Rule) -> Rule:
    """Return the rule for an object with exactly one of ``kinds``."""
    entry = record(**kinds)

    def rule(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) != 1:
            raise refuse(value, place)
        return dict(entry(value, place))

    return rule


# The closed grammar of sizes in an exported program: integers, symbols, and formulas of the two.
#
# torch hands such text to sympy, which evaluates it as Python. Text passes here only if it is built from the names
# below, and what is handed on is written again from what was understood.

LONGEST = 10_000
"""Characters of an expression; those of the vision transformers and convolutional networks in the tests have below 300."""
HIGHEST_POWER = 8
SYMBOL = re.compile(r"[a-z]{1,8}_?\d{1,4}", re.ASCII)
ASSUMPTIONS = ("positive", "integer", "nonnegative", "negative", "nonpositive", "nonzero", "real", "finite")
FORMULAS = re.compile(
    r"Add|Mul|Max|Min|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv|ModularIndexing|IntTrueDiv|FloatTrueDiv|ToFloat"
    r"|TruncToInt|CeilToInt|FloorToInt|Where|Identity|floor|ceiling|Equality|Unequality|GreaterThan|LessThan"
    r"|StrictGreaterThan|StrictLessThan|Not|And|Or"
)
POWERS = ("Pow", "PowByNatural")
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv)
"""How earlier versions of torch wrote the first four of the formulas."""


def size_expression(value: Any, place: str) -> str:
    """Check an expression of sizes.

    Example:
        >>> size_expression("Mul(Integer(2), Symbol('s31', positive=True, integer=True))", "size")
        "Mul(Integer(2), Symbol('s31', positive=True, integer=True))"
        >>> size_expression("S('open(1)')", "size")
        Traceback (most recent call last):
        holdfast.encoders.exported.program.UnlistedError: size is "S('open(1)')"
    """
    if not isinstance(value, str) or not value.isascii() or len(value) > LONGEST:
        raise refuse(value, place)
    try:
        tree = ast.parse(value, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise refuse(value, place) from error
    if not _is_formula(tree):
        raise refuse(value, place)
    return ast.unparse(tree)


def _is_formula(tree: ast.expr) -> bool:
    match tree:
        case ast.Name(id=name):
            return bool(SYMBOL.fullmatch(name))
        case ast.BinOp(left=left, op=op, right=right):
            return isinstance(op, ARITHMETIC) and _is_formula(left) and _is_formula(right)
        case ast.Call(func=ast.Name(id="Integer"), args=[number], keywords=[]):
            return _integer(number) is not None
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))], keywords=assumptions):
            return bool(SYMBOL.fullmatch(name)) and all(map(_is_assumption, assumptions))
        case ast.Call(func=ast.Name(id=name), args=[base, exponent], keywords=[]) if name in POWERS:
            return _is_formula(base) and not _holds_power(base) and _is_small(exponent)
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]):
            return bool(FORMULAS.fullmatch(name)) and all(map(_is_formula, parts))
    return _integer(tree) is not None


def _integer(tree: ast.expr) -> int | None:
    match tree:
        case ast.Constant(value=number) if type(number) is int and number <= WIDEST:
            return number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=number)) if type(number) is int:
            return -number if number <= WIDEST else None
    return None


def _is_assumption(keyword: ast.keyword) -> bool:
    return keyword.arg in ASSUMPTIONS and isinstance(keyword.value, ast.Constant) and type(keyword.value.value) is bool


def _is_small(exponent: ast.expr) -> bool:
    match exponent:
        case ast.Call(func=ast.Name(id="Integer"), args=[number], keywords=[]):
            return _is_small(number)
    power = _integer(exponent)
    return power is not None and abs(power) <= HIGHEST_POWER


def _holds_power(tree: ast.expr) -> bool:
    """Return whether there is a power inside: powers of powers of powers have digits without end."""
    return any(isinstance(part, ast.Name) and part.id in POWERS for part in ast.walk(tree))


# Everything that the JSON documents of an exported program may hold (torch's ``_export/serde/schema.py``).
#
# Names become part of Python source that torch writes and runs, so each is an identifier. Strings reach operators
# alone, and only operators that take words, none that takes the name of a file. Stack traces, guards and notes are
# code or text that no encoder needs; torch never sees them.

ATEN = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)", re.ASCII)
OTHER_OPERATORS = re.compile(
    r"_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|neg|pos|eq|ne|le|ge|lt|gt|and_|or_)"
    r"|torch\.sym_(not|float|int|ite|max|min)|math\.(trunc|ceil|floor)"
    r"|torch\.ops\.higher_order\.wrap_with_(set_grad_enabled|autocast)"
)
WORDS = re.compile(
    r"approximate|assert_msg|driver|equation|indexing|interpolation|message|mode|norm|ord|pad_mode|padding"
    r"|padding_side|reduce|rounding_mode|side"
)
"""Arguments of torch's operators that take text without reading or writing anything of that name."""

name = text(r"[A-Za-z_]\w*")
dotted = text(r"[\w-]+(\.[\w-]+)*")
symbol = text(r"[a-z]{1,8}_?\d{1,4}")
printable = text(r"[ -~]{0,1000}")


def operator(value: Any, place: str) -> str:
    """Check the name of a torch operator that works on numbers alone.

    Raises:
        UnlistedError: It is no such operator.
    """
    if isinstance(value, str) and OTHER_OPERATORS.fullmatch(value):
        return value
    parts = ATEN.fullmatch(value) if isinstance(value, str) else None
    overload = getattr(getattr(torch.ops.aten, parts[1], None), parts[2], None) if parts else None
    if not isinstance(overload, torch._ops.OpOverload):
        raise UnlistedError(f"{place} names the operator {str(value)[:80]!r}, which torch {torch.__version__} lacks")
    if any("str" in str(part.type) and not WORDS.fullmatch(part.name) for part in overload._schema.arguments):
        raise UnlistedError(f"{place} names the operator {value!r}, which may read or write files")
    return value


def structure(value: Any, place: str) -> str:
    """Return how inputs or outputs are nested: JSON as text, of tuples, lists and dictionaries."""
    if not isinstance(value, str):
        raise refuse(value, place)
    document = json.loads(value)
    if not isinstance(document, list) or len(document) != 2:
        raise refuse(value, place)
    return json.dumps([integer(document[0], place), _nesting(document[1], place)])


def _names_as_text(value: Any, place: str) -> Any:
    # The keys of a dictionary stand there as JSON within JSON; tuples and lists have null.
    if value is None or value == "null":
        return value
    names = json.loads(value) if isinstance(value, str) else value
    known = several(name)(names, place)
    return json.dumps(known) if isinstance(value, str) else known


_nesting: Rule = record(
    type=optional(text(r"builtins\.(tuple|list|dict)")),
    context=_names_as_text,
    children_spec=several(lambda value, place: _nesting(value, place)),
)

size_value = variant(
    as_int=integer,
    as_expr=record(expr_str=size_expression, hint=optional(variant(as_int=integer, as_bool=boolean, as_float=real))),
)
real_value = variant(as_float=real, as_expr=record(expr_str=size_expression, hint=optional(variant(as_float=real))))
truth_value = variant(
    as_bool=boolean, as_expr=record(expr_str=size_expression, hint=optional(variant(as_bool=boolean)))
)
device = record(type=text("cpu|cuda|mps|xpu"), index=optional(integer))
tensor_meta = record(
    dtype=integer,
    sizes=several(size_value),
    requires_grad=boolean,
    device=device,
    strides=several(size_value),
    storage_offset=size_value,
    layout=integer,
)

tensor = record(name=name)
maybe_tensor = variant(as_tensor=tensor, as_none=boolean)
size = variant(as_name=name, as_int=integer)
number = variant(as_name=name, as_float=real)
truth = variant(as_name=name, as_bool=boolean)
argument = variant(
    as_none=boolean,
    as_tensor=tensor,
    as_tensors=several(tensor),
    as_optional_tensor=maybe_tensor,
    as_optional_tensors=several(maybe_tensor),
    as_int=integer,
    as_ints=several(integer),
    as_int_lists=several(several(integer)),
    as_float=real,
    as_floats=several(real),
    as_bool=boolean,
    as_bools=several(boolean),
    as_string=printable,
    as_sym_int=size,
    as_sym_ints=several(size),
    as_sym_float=number,
    as_sym_floats=several(number),
    as_sym_bool=truth,
    as_sym_bools=several(truth),
    as_scalar_type=integer,
    as_memory_format=integer,
    as_layout=integer,
    as_device=device,
    as_graph=record(name=name, graph=lambda value, place: graph(value, place)),
)
node = record(
    target=operator,
    inputs=several(record(name=text(r"\w*"), arg=argument, kind=optional(integer))),
    outputs=several(argument),
    metadata=replaced({}),
    is_hop_single_tensor_return=optional(boolean),
    name=optional(name),
)
graph: Rule = record(
    inputs=several(argument),
    outputs=several(argument),
    nodes=several(node),
    tensor_values=mapping(name, tensor_meta),
    sym_int_values=mapping(name, size_value),
    sym_bool_values=mapping(name, truth_value),
    sym_float_values=mapping(name, real_value),
    is_single_tensor_return=boolean,
    custom_obj_values=constant({}),
)
signature = record(
    input_specs=several(
        variant(
            user_input=record(arg=argument),
            parameter=record(arg=tensor, parameter_name=dotted),
            buffer=record(arg=tensor, buffer_name=dotted, persistent=boolean),
            tensor_constant=record(arg=tensor, tensor_constant_name=dotted),
        )
    ),
    output_specs=several(
        variant(user_output=record(arg=argument), buffer_mutation=record(arg=tensor, buffer_name=dotted))
    ),
)
module_call = record(
    fqn=text(r"|[\w-]+(\.[\w-]+)*(@\d+)?"),
    signature=optional(
        record(
            inputs=several(argument),
            outputs=several(argument),
            in_spec=structure,
            out_spec=structure,
            forward_arg_names=optional(several(name)),
        )
    ),
)
PROGRAM: Rule = record(
    graph_module=record(
        graph=graph,
        signature=signature,
        module_call_graph=several(module_call),
        metadata=replaced({}),
        treespec_namedtuple_fields=constant({}),
    ),
    opset_version=mapping(name, integer),
    range_constraints=mapping(symbol, record(min_val=optional(integer), max_val=optional(integer))),
    schema_version=record(major=integer, minor=integer),
    verifiers=several(name),
    torch_version=text(r"[\w.+<=-]{1,60}"),
    guards_code=replaced([]),
)
"""Everything that the graph's document may hold."""


def payload(kind: str) -> Rule:
    """Return the rule for the list of tensors that lie in records ``kind`` and a number."""
    entry = record(
        path_name=text(rf"{kind}_\d+"), is_param=boolean, use_pickle=constant(False), tensor_meta=optional(tensor_meta)
    )
    return record(config=mapping(dotted, entry))


# What must hold of a ``.pt2`` archive before torch may read it: tensors and a graph, no objects and no code.
#
# ``torch.export.load`` falls back to unrestricted unpickling for some records, evaluates shape expressions and writes
# Python source from names. So everything that may appear is listed, records here and JSON in ``program``, and torch
# is given an archive written again from what is on the list: two readers may find different records in one file.

RAW = re.compile(
    r"data/weights/weight_\d+|data/constants/tensor_\d+|\.data/(version|serialization_id)|(archive_)?(format|version)"
    r"|byteorder"
)
TENSORS = re.compile(r"(data/(weights|constants)/model|serialized_(state_dict|constants))\.pt")
UNUSED = re.compile(r"extra/.*|(data/sample_inputs/model|serialized_example_inputs)\.pt")
"""Records that nothing reads here; torch is given empty ones."""
DOCUMENTS = {
    "models/model.json": PROGRAM,
    "serialized_exported_program.json": PROGRAM,
    "data/weights/model_weights_config.json": payload("weight"),
    "data/constants/model_constants_config.json": payload("tensor"),
}


def checked_archive(path: Path) -> io.BytesIO:
    """Return an archive of what is on the list in the one at ``path``, which holds nothing else.

    Raises:
        HoldfastError: it is damaged, unpacks to more than it holds, or holds what is not on the list.
    """
    checked = io.BytesIO()
    try:
        check_expansion(path, f"'{path}'")
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(checked, "w") as copy:
            _check_names(archive.namelist())
            for found in archive.namelist():
                copy.writestr(found, _checked(found.partition("/")[2] or found, archive.read(found)))
    except UnlistedError as error:
        raise HoldfastError(
            f"'{path}' is refused, even with trust: reading it could run code ({error}). Expected tensors and a graph of "
            "torch's operators. Export it again with the installed torch and plain tensors as inputs, or to ONNX."
        ) from error
    except HoldfastError:
        raise
    except Exception as error:  # a damaged archive fails in many ways
        raise HoldfastError(
            f"'{path}' is no exported program ({first_line(error)}); it may be truncated: copy or export it again"
        ) from error
    checked.seek(0)
    return checked


def _check_names(records: Sequence[str]) -> None:
    # torch finds records whatever their case.
    counted = Counter(found.casefold() for found in records)
    for found in records:
        if counted[found.casefold()] > 1:
            raise UnlistedError(f"two records are called {found}")


def _checked(record: str, content: bytes) -> bytes:
    """Return what torch is given as the record."""
    if UNUSED.fullmatch(record):
        return b""
    if record in DOCUMENTS:
        return json.dumps(DOCUMENTS[record](json.loads(content), record)).encode()
    if TENSORS.fullmatch(record):
        _check_tensors(record, content)
    elif not RAW.fullmatch(record):
        raise UnlistedError(f"unexpected record {record}")
    return content


def _check_tensors(record: str, content: bytes) -> None:
    check_expansion(io.BytesIO(content), f"its record {record}")
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise UnlistedError(f"{record} is not a dictionary of tensors alone") from error
