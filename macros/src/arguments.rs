//! What a function is given, and whether every attempt can be given it again.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Error, Expr, ExprLit, FnArg, GenericArgument, Ident, Lit, Pat, PatIdent, PathArguments, Receiver, Result,
    Signature, Type,
};

use crate::options::Options;

/// Whether a function has a `self`.
pub(crate) fn receiver(signature: &Signature) -> Option<&Receiver> {
    match signature.inputs.first() {
        Some(FnArg::Receiver(receiver)) => Some(receiver),
        _ => None,
    }
}

/// Rejects what an attempt could leave changed for the next one.
pub(crate) fn check(signature: &Signature, options: &Options) -> Result<()> {
    for input in &signature.inputs {
        match input {
            FnArg::Receiver(it) if it.reference.is_some() && it.mutability.is_some() || lends_mut(&it.ty) => {
                return Err(Error::new_spanned(
                    it,
                    "a retry runs the whole body again, and would find `self` as the attempt before left it: take \
                     `&self` and keep what changes behind a lock or an atomic",
                ));
            }
            FnArg::Receiver(it) if it.mutability.is_some() => {
                return Err(Error::new_spanned(
                    it,
                    "an attempt cannot use up `self`, the next one needs it too: take `&self`",
                ));
            }
            FnArg::Receiver(_) => {}
            FnArg::Typed(it) if lends_mut(&it.ty) => {
                return Err(Error::new_spanned(
                    it,
                    "a retry runs the whole body again, and would find this argument as the attempt before left it: \
                     take `&T` or a value, and give back what changed",
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
                                "an attempt that changes `{name}` would leave it changed for the next one: say \
                                 `clone({name})`, so that each attempt gets a copy of its own"
                            ),
                        ));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Whether somebody else's value is lent to be changed: `&mut T`, `Pin<&mut T>`, `Option<&mut T>`.
fn lends_mut(ty: &Type) -> bool {
    match ty {
        Type::Reference(it) => it.mutability.is_some(),
        Type::Paren(it) => lends_mut(&it.elem),
        Type::Group(it) => lends_mut(&it.elem),
        Type::Tuple(it) => it.elems.iter().any(lends_mut),
        Type::Path(it) => it.path.segments.last().is_some_and(|last| match &last.arguments {
            PathArguments::AngleBracketed(list) => list.args.iter().any(|argument| match argument {
                GenericArgument::Type(ty) => lends_mut(ty),
                _ => false,
            }),
            _ => false,
        }),
        _ => false,
    }
}

/// The names a pattern binds.
fn bindings(pattern: &Pat) -> Vec<PatIdent> {
    let mut found = Bindings { found: Vec::new(), settle: &[] };
    found.visit_pat_mut(&mut pattern.clone());
    found.found
}

/// Collects names, and takes the `mut` from those that attempts get copies of: the original stays as it is.
struct Bindings<'a> {
    found: Vec<PatIdent>,
    settle: &'a [Ident],
}

impl VisitMut for Bindings<'_> {
    fn visit_pat_ident_mut(&mut self, it: &mut PatIdent) {
        self.found.push(it.clone());
        if self.settle.contains(&it.ident) {
            it.mutability = None;
        }
        visit_mut::visit_pat_ident_mut(self, it);
    }
}

/// One `let` for each argument that attempts get copies of.
pub(crate) fn clones(signature: &mut Signature, options: &Options) -> Result<TokenStream> {
    let Some(list) = &options.clone else {
        return Ok(TokenStream::new());
    };
    let mut bound = Bindings { found: Vec::new(), settle: &list.names };
    for input in &mut signature.inputs {
        if let FnArg::Typed(it) = input {
            bound.visit_pat_mut(&mut it.pat);
        }
    }
    let copies = list.names.iter().map(|name| {
        if name == "self" {
            return Err(Error::new(name.span(), "`self` is not cloned: take `&self`"));
        }
        let Some(PatIdent { mutability, ident, .. }) = bound.found.iter().find(|it| it.ident == *name) else {
            return Err(Error::new(name.span(), format!("no argument is called `{name}`")));
        };
        Ok(quote_spanned!(name.span()=> let #mutability #ident = ::core::clone::Clone::clone(&#ident);))
    });
    copies.collect()
}

/// The route as an expression that is `Into<Route>`. An argument is lent unless it is a reference already.
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
        Some(ty) if is_copied(ty) => quote!(#route),
        Some(_) => quote!(&#route),
    }
}

/// A reference, an `Option` of one, or a `Route`: passed on as it is.
fn is_copied(ty: &Type) -> bool {
    match ty {
        Type::Reference(_) => true,
        Type::Paren(it) => is_copied(&it.elem),
        Type::Group(it) => is_copied(&it.elem),
        Type::Path(it) => it.path.segments.last().is_some_and(|last| last.ident == "Option" || last.ident == "Route"),
        _ => false,
    }
}
