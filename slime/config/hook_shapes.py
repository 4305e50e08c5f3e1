"""What a user's module says of a function that an option names, read and not run: that nobody can call it, that it
can't take what it is called with, that a data source lacks methods. Only of what is defined once, at the top of its
module, and as plainly as can be; of everything else, nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

CALLS = {
    "rollout_function_path": "args, rollout_id, data_source",
    "eval_function_path": "args, rollout_id, data_source, *, evaluation",
    "custom_generate_function_path": "args, sample, sampling_params, *, evaluation=...",
    "custom_rm_path": "args, sample",
    "dynamic_sampling_filter_path": "args, samples",
    "buffer_filter_path": "args, rollout_id, buffer, num_samples",
    "rollout_sample_hook_path": "args, sample, *, rollout_id, evaluation",
    "rollout_sample_filter_path": "args, samples",
    "rollout_all_samples_process_path": "args, all_samples, data_source",
    "custom_convert_samples_to_train_data_path": "args, samples",
    "custom_reward_post_process_path": "args, samples",
    "custom_rollout_log_function_path": "rollout_id, args, samples, extra_metrics, rollout_time",
    "custom_eval_rollout_log_function_path": "rollout_id, args, data, extra_metrics",
    "data_source_path": "args",
    "rollout_data_postprocess_path": "args, rollout_id, rollout_data",
    "custom_loss_function_path": "args, batch, logits, sum_of_sample_mean",
    "custom_advantage_function_path": "args, rollout_data",
    "custom_tis_function_path": "args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths,"
    " response_lengths",
    "custom_pg_loss_reducer_function_path": "total_lengths, response_lengths, loss_masks, calculate_per_token_loss",
    "custom_megatron_init_path": "args",
    "custom_megatron_before_log_prob_hook_path": "args, model, store_prefix",
    "custom_megatron_before_train_step_hook_path": "args, rollout_id, step_id, model, optimizer, opt_param_scheduler",
    "custom_update_weight_post_write_path": "args, directory, weight_version",
}
"""How each is called, as a list of arguments; after the star are those that are given by name; with
a default, if they are taken."""
DATA_SOURCE = ("get_samples", "add_samples", "save", "load", "__len__")  # its methods
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def wrong_shape(module: ast.Module, attribute: str, option: str) -> tuple[str, str] | None:
    """(what is wrong with what a module defines under this name, what to do); None if nothing surely is."""
    match _only(module, attribute):
        case ast.FunctionDef() | ast.AsyncFunctionDef() as function if not function.decorator_list:
            return _mistaken(function.args, attribute, option)
        case ast.Assign(targets=[ast.Name()], value=value):
            return _mistaken_value(value, attribute, option)
        case ast.ClassDef() as class_ if option == "data_source_path":
            names = _members(module, class_)
            missing = [name for name in DATA_SOURCE if names is not None and name not in names]
            if missing:
                return f"{attribute} has no {', '.join(missing)}", "a data source has " + ", ".join(DATA_SOURCE)
    return None


def _mistaken_value(value: ast.expr, name: str, option: str) -> tuple[str, str] | None:
    match value:
        case ast.Lambda(args=parameters):
            return _mistaken(parameters, name, option)
        case ast.Constant(value=constant):
            kind = type(constant).__name__
        case ast.List() | ast.Tuple() | ast.Dict() | ast.Set():
            kind = type(value).__name__.lower()
        case _:
            return None
    return f"it is of type {kind}, which nobody can call", "name a function"


def _only(module: ast.Module, name: str) -> ast.stmt | None:
    """The statement that binds a name, where it is the only one, and always happens."""
    binding = [statement for statement in module.body if name in _bound(statement)]
    return binding[0] if len(binding) == 1 else None


def _bound(statement: ast.AST) -> Iterator[str]:
    """Names that a statement may bind in its module, in whatever branch."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        match node:
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):  # makes something else of it
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
        if isinstance(node, SCOPES):  # what they bind is their own, but for what they declare to be the module's
            todo += [inner for inner in ast.walk(node) if isinstance(inner, ast.Global)]
        else:
            todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Global):
            yield from node.names


def _mistaken(parameters: ast.arguments, name: str, option: str) -> tuple[str, str] | None:
    if option not in CALLS:
        return None
    call = ast.parse(f"lambda {CALLS[option]}: 0", mode="eval").body.args
    given = len(call.args)
    asked = {argument.arg for argument, default in zip(call.kwonlyargs, call.kw_defaults, strict=True) if not default}
    by_name = {argument.arg for argument in call.kwonlyargs}
    by_place = [*parameters.posonlyargs, *parameters.args]
    left = [argument.arg for argument in parameters.args[max(0, given - len(parameters.posonlyargs)) :]]
    optional = {argument.arg for argument in by_place[len(by_place) - len(parameters.defaults) :]}
    optional |= {
        argument.arg
        for argument, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
        if default is not None
    }
    own = {argument.arg for argument in parameters.kwonlyargs}
    unfilled = {argument.arg for argument in by_place[given:]} | own
    too_many = given > len(by_place) and parameters.vararg is None
    unknown = parameters.kwarg is None and bool(asked - own - set(left))
    if too_many or unknown or unfilled - optional - by_name:
        return f"it is {name}({ast.unparse(parameters)}), and is called as {name}({CALLS[option]})", "see docs/hooks.md"
    return None


def _members(module: ast.Module, class_: ast.ClassDef) -> set[str] | None:
    """What objects of a class surely or possibly have; None where it has more than its module says."""
    if class_.decorator_list or class_.keywords:
        return None
    names = {name for statement in class_.body for name in _bound(statement)}
    for node in ast.walk(class_):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.Name(id="setattr" | "__getattr__"):
                return None
    if names & {"__getattr__", "__new__"}:
        return None
    for base in class_.bases:
        if isinstance(base, ast.Name) and base.id == "object":
            continue
        of_base = _only(module, base.id) if isinstance(base, ast.Name) else None
        more = _members(module, of_base) if isinstance(of_base, ast.ClassDef) and of_base is not class_ else None
        if more is None:
            return None
        names |= more
    return names
