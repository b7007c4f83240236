//! The arguments of a function, and whether every attempt can use them again.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Error, Expr, ExprLit, FnArg, GenericArgument, Ident, Lit, Pat, PatIdent, PathArguments, Receiver, Result,
    Signature, Type,
};

use crate::options::Options;

/// Returns the `self` argument.
pub(crate) fn receiver(signature: &Signature) -> Option<&Receiver> {
    match signature.inputs.first() {
        Some(FnArg::Receiver(receiver)) => Some(receiver),
        _ => None,
    }
}

/// Rejects arguments that an attempt could change for the next one.
pub(crate) fn check(signature: &Signature, options: &Options) -> Result<()> {
    for input in &signature.inputs {
        match input {
            FnArg::Receiver(it) if it.reference.is_some() && it.mutability.is_some() || borrows_mut(&it.ty) => {
                return Err(Error::new_spanned(
                    it,
                    "a retry runs the whole body again with a `self` that the previous attempt may have changed: take \
                     `&self` and keep mutable state behind a lock or an atomic",
                ));
            }
            FnArg::Receiver(it) if it.mutability.is_some() => {
                return Err(Error::new_spanned(
                    it,
                    "an attempt cannot consume `self`, because a retry needs it again: take `&self`",
                ));
            }
            FnArg::Receiver(_) => {}
            FnArg::Typed(it) if borrows_mut(&it.ty) => {
                return Err(Error::new_spanned(
                    it,
                    "a retry runs the whole body again with an argument that the previous attempt may have changed: \
                     take `&T` or a value, and return the changes",
                ));
            }
            FnArg::Typed(it) => {
                for bound in bindings(&it.pat) {
                    let cloned = options.clone.as_ref().is_some_and(|list| list.contains(&bound.ident));
                    if bound.mutability.is_some() && !cloned {
                        let name = &bound.ident;
                        return Err(Error::new_spanned(
                            &bound,
                            format!(
                                "an attempt would change `{name}` for the next one: add `clone({name})`, so that each \
                                 attempt gets its own clone"
                            ),
                        ));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Returns whether a type contains a mutable borrow: `&mut T`, `Pin<&mut T>`, `Option<&mut T>`.
fn borrows_mut(ty: &Type) -> bool {
    match ty {
        Type::Reference(it) => it.mutability.is_some(),
        Type::Paren(it) => borrows_mut(&it.elem),
        Type::Group(it) => borrows_mut(&it.elem),
        Type::Tuple(it) => it.elems.iter().any(borrows_mut),
        Type::Path(it) => it.path.segments.last().is_some_and(|last| match &last.arguments {
            PathArguments::AngleBracketed(list) => list.args.iter().any(|argument| match argument {
                GenericArgument::Type(ty) => borrows_mut(ty),
                _ => false,
            }),
            _ => false,
        }),
        _ => false,
    }
}

/// Returns the names that a pattern binds.
fn bindings(pattern: &Pat) -> Vec<PatIdent> {
    let mut found = Bindings { found: Vec::new(), cloned: &[] };
    found.visit_pat_mut(&mut pattern.clone());
    found.found
}

/// Collects names, and removes the `mut` of cloned arguments: only the clones are changed.
struct Bindings<'a> {
    found: Vec<PatIdent>,
    cloned: &'a [Ident],
}

impl VisitMut for Bindings<'_> {
    fn visit_pat_ident_mut(&mut self, it: &mut PatIdent) {
        self.found.push(it.clone());
        if self.cloned.contains(&it.ident) {
            it.mutability = None;
        }
        visit_mut::visit_pat_ident_mut(self, it);
    }
}

/// Returns one `let` for each argument that attempts get a clone of.
pub(crate) fn clones(signature: &mut Signature, options: &Options) -> Result<TokenStream> {
    let Some(list) = &options.clone else {
        return Ok(TokenStream::new());
    };
    let mut bound = Bindings { found: Vec::new(), cloned: &list.names };
    for input in &mut signature.inputs {
        if let FnArg::Typed(it) = input {
            bound.visit_pat_mut(&mut it.pat);
        }
    }
    let clones = list.names.iter().map(|name| {
        if name == "self" {
            return Err(Error::new(name.span(), "`self` cannot be cloned: take `&self`"));
        }
        let Some(PatIdent { mutability, ident, .. }) = bound.found.iter().find(|it| it.ident == *name) else {
            return Err(Error::new(name.span(), format!("there is no argument `{name}`")));
        };
        Ok(quote_spanned!(name.span()=> let #mutability #ident = ::core::clone::Clone::clone(&#ident);))
    });
    clones.collect()
}

/// Returns the route as an expression that is `Into<Route>`. An argument is borrowed unless it is a reference already.
pub(crate) fn route(signature: &Signature, options: &Options) -> TokenStream {
    let Some(route) = &options.route else {
        return quote!(());
    };
    if let Expr::Lit(ExprLit { lit: Lit::Str(_), .. }) = route {
        return quote!(#route);
    }
    let argument = |input: &FnArg| match (input, route) {
        (FnArg::Typed(it), Expr::Path(path)) => match &*it.pat {
            Pat::Ident(name) if path.path.is_ident(&name.ident) => Some(it.ty.clone()),
            _ => None,
        },
        _ => None,
    };
    match signature.inputs.iter().find_map(argument).as_deref() {
        None => quote!(#route),
        Some(ty) if is_passed_as_is(ty) => quote!(#route),
        Some(_) => quote!(&#route),
    }
}

/// Returns whether a type is passed on without a borrow: a reference, an `Option` of one, or a `Route`.
fn is_passed_as_is(ty: &Type) -> bool {
    match ty {
        Type::Reference(_) => true,
        Type::Paren(it) => is_passed_as_is(&it.elem),
        Type::Group(it) => is_passed_as_is(&it.elem),
        Type::Path(it) => it.path.segments.last().is_some_and(|last| last.ident == "Option" || last.ident == "Route"),
        _ => false,
    }
}
