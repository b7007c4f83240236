//! Expansion of an impl block: every async method, or the named ones.

use syn::{Attribute, Error, Ident, ImplItem, ImplItemFn, ItemImpl, Meta, Result, ReturnType, Type, TypeParamBound};

use crate::arguments::receiver;
use crate::function::{Bound, attach};
use crate::options::{List, Options};

/// Wraps the methods in calls under the policy.
pub(crate) fn attach_all(block: &mut ItemImpl, options: &Options) -> Result<()> {
    if let Some(list) = &options.clone {
        return Err(Error::new(
            list.option.span(),
            "`clone(…)` is not allowed on an impl block: put `#[resilient(clone(…))]` on the method",
        ));
    }
    if let (Some(_), Some(except)) = (&options.methods, &options.except) {
        return Err(Error::new(except.option.span(), "`methods` and `except` cannot be combined"));
    }
    if options.methods.is_some()
        && let Some(allowed) = &options.allow_blanket_retry
    {
        return Err(Error::new(
            allowed.span(),
            "`allow_blanket_retry` is not needed with `methods(…)`, which names the methods that may be retried",
        ));
    }
    for list in [&options.methods, &options.except].into_iter().flatten() {
        all_exist(block, list)?;
    }
    let bound = match (&options.methods, &options.allow_blanket_retry) {
        (None, None) => Bound::WithBlock,
        _ => Bound::ByName,
    };
    let (mut attached, mut errors) = (0, Vec::new());
    for item in &mut block.items {
        let ImplItem::Fn(method) = item else {
            continue;
        };
        match is_bound(method, options) {
            Ok(false) => {}
            Ok(true) => {
                attached += 1;
                errors.extend(attach_one(method, options, bound).err());
            }
            Err(error) => errors.push(error),
        }
    }
    if let Some(error) = errors.into_iter().reduce(combined) {
        return Err(error);
    }
    if attached == 0 {
        return Err(Error::new_spanned(
            &block.self_ty,
            "there is no async method to apply the policy to (put `#[resilient]` above `#[async_trait]`)",
        ));
    }
    Ok(())
}

fn combined(mut all: Error, one: Error) -> Error {
    all.combine(one);
    all
}

fn attach_one(method: &mut ImplItemFn, options: &Options, bound: Bound) -> Result<()> {
    let Some(own) = take(&mut method.attrs)? else {
        return attach(&mut method.sig, &mut method.block, options, bound)
            .map_err(|error| hint(error, method, options));
    };
    own.check_for_function()?;
    // A policy on the method itself was chosen for this method.
    let bound = if own.policy.is_some() { Bound::ByName } else { bound };
    attach(&mut method.sig, &mut method.block, &own.or(options), bound)
}

/// Adds a hint that a method can be left out of the block.
fn hint(error: Error, method: &ImplItemFn, options: &Options) -> Error {
    if options.methods.is_some() || options.policy.is_none() {
        return error;
    }
    let name = &method.sig.ident;
    let hinted: Vec<Error> = error
        .into_iter()
        .map(|one| Error::new(one.span(), format!("{one}; or exclude the method with `except({name})`")))
        .collect();
    hinted.into_iter().reduce(combined).unwrap_or_else(|| Error::new(name.span(), "the policy cannot be applied"))
}

/// Returns whether the policy applies to this method: to the named ones, or else to every async method with a `self` that
/// returns no stream.
fn is_bound(method: &ImplItemFn, options: &Options) -> Result<bool> {
    let name = &method.sig.ident;
    if let Some(list) = &options.methods {
        if list.contains(name) && is_stream(&method.sig.output) {
            return Err(Error::new(
                name.span(),
                "a policy ends with the call, but a stream goes on: apply the policy where the stream is read",
            ));
        }
        return Ok(list.contains(name));
    }
    let excepted = options.except.as_ref().is_some_and(|list| list.contains(name));
    let method = &method.sig;
    Ok(!excepted && method.asyncness.is_some() && receiver(method).is_some() && !is_stream(&method.output))
}

/// Matches `impl Stream<…>` with any path.
fn is_stream(output: &ReturnType) -> bool {
    let ReturnType::Type(_, ty) = output else {
        return false;
    };
    let Type::ImplTrait(it) = &**ty else {
        return false;
    };
    it.bounds.iter().any(|bound| match bound {
        TypeParamBound::Trait(it) => it.path.segments.last().is_some_and(|last| last.ident == "Stream"),
        _ => false,
    })
}

fn all_exist(block: &ItemImpl, list: &List) -> Result<()> {
    let exists = |name: &&Ident| {
        block.items.iter().any(|item| matches!(item, ImplItem::Fn(method) if method.sig.ident == **name))
    };
    match list.names.iter().find(|name| !exists(name)) {
        Some(name) => Err(Error::new(name.span(), format!("this block has no method `{name}`"))),
        None => Ok(()),
    }
}

/// Removes the `#[resilient]` of a method and parses it.
fn take(attributes: &mut Vec<Attribute>) -> Result<Option<Options>> {
    let Some(at) = attributes.iter().position(is_ours) else {
        return Ok(None);
    };
    let attribute = attributes.remove(at);
    if let Some(second) = attributes.iter().find(|it| is_ours(it)) {
        return Err(Error::new_spanned(second, "duplicate `#[resilient]`"));
    }
    match attribute.meta {
        Meta::Path(_) => Ok(Some(Options::default())),
        meta => meta.require_list()?.parse_args().map(Some),
    }
}

fn is_ours(attribute: &Attribute) -> bool {
    attribute.path().segments.last().is_some_and(|last| last.ident == "resilient")
}

/// Removes every `#[resilient]` of the methods, which would be expanded again.
pub(crate) fn strip_attributes(block: &mut ItemImpl) {
    for item in &mut block.items {
        if let ImplItem::Fn(method) = item {
            method.attrs.retain(|attribute| !is_ours(attribute));
        }
    }
}
