//! The options of the attribute: `#[resilient(policy = "…", …)]`.

use proc_macro2::Span;
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, ExprLit, Ident, Lit, Path, Result, Token, parenthesized};

/// The options of one attribute, unexpanded.
#[derive(Clone, Default)]
pub(crate) struct Options {
    pub(crate) policy: Option<Expr>,
    pub(crate) route: Option<Expr>,
    pub(crate) module: Option<Expr>,
    pub(crate) classify: Option<Expr>,
    /// Arguments that each attempt gets a clone of.
    pub(crate) clone: Option<List>,
    /// The path of the crate `phalanx`.
    pub(crate) krate: Option<Path>,
    pub(crate) methods: Option<List>,
    pub(crate) except: Option<List>,
    pub(crate) allow_blanket_retry: Option<Ident>,
}

/// An option with a list of names: `clone(a, b)`.
#[derive(Clone)]
pub(crate) struct List {
    pub(crate) option: Ident,
    pub(crate) names: Vec<Ident>,
}

impl List {
    pub(crate) fn contains(&self, name: &Ident) -> bool {
        self.names.contains(name)
    }
}

impl Options {
    /// Fills options that are not set from those of the surrounding block.
    pub(crate) fn or(self, outer: &Self) -> Self {
        Self {
            policy: self.policy.or_else(|| outer.policy.clone()),
            route: self.route.or_else(|| outer.route.clone()),
            module: self.module.or_else(|| outer.module.clone()),
            classify: self.classify.or_else(|| outer.classify.clone()),
            krate: self.krate.or_else(|| outer.krate.clone()),
            ..self
        }
    }

    /// Rejects options that are only allowed on an impl block.
    pub(crate) fn check_for_function(&self) -> Result<()> {
        let lists = [&self.methods, &self.except].into_iter().flatten().map(|list| &list.option);
        match lists.chain(&self.allow_blanket_retry).next() {
            Some(option) => Err(Error::new(option.span(), format!("`{option}` is only allowed on an impl block"))),
            None => Ok(()),
        }
    }
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            let option = input.call(Ident::parse_any)?;
            match option.to_string().as_str() {
                "policy" => set(&mut options.policy, &option, name(input)?)?,
                "route" => set(&mut options.route, &option, name(input)?)?,
                "module" => set(&mut options.module, &option, value(input)?)?,
                "classify" => set(&mut options.classify, &option, value(input)?)?,
                "crate" => {
                    input.parse::<Token![=]>()?;
                    set(&mut options.krate, &option, input.call(Path::parse_mod_style)?)?;
                }
                "clone" => set(&mut options.clone, &option, list(&option, input)?)?,
                "methods" => set(&mut options.methods, &option, list(&option, input)?)?,
                "except" => set(&mut options.except, &option, list(&option, input)?)?,
                "allow_blanket_retry" => set(&mut options.allow_blanket_retry, &option, option.clone())?,
                _ => return Err(Error::new(option.span(), unknown(&option))),
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

fn unknown(option: &Ident) -> String {
    format!(
        "unknown option `{option}`: expected `policy`, `route`, `module`, `classify`, `clone(…)` or `crate`, or on an \
         impl block `methods(…)`, `except(…)` or `allow_blanket_retry`"
    )
}

fn set<T>(field: &mut Option<T>, option: &Ident, value: T) -> Result<()> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::new(option.span(), format!("`{option}` is given twice"))),
    }
}

fn value(input: ParseStream<'_>) -> Result<Expr> {
    input.parse::<Token![=]>()?;
    input.parse()
}

/// Parses a name: a string, or an expression for one.
fn name(input: ParseStream<'_>) -> Result<Expr> {
    let value = value(input)?;
    match &value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) if text.value().is_empty() => {
            Err(Error::new_spanned(&value, "a name cannot be empty"))
        }
        Expr::Lit(ExprLit { lit: Lit::Str(_), .. }) => Ok(value),
        Expr::Lit(_) => Err(Error::new_spanned(&value, "expected a string, or an expression for one")),
        _ => Ok(value),
    }
}

fn list(option: &Ident, input: ParseStream<'_>) -> Result<List> {
    let within;
    parenthesized!(within in input);
    let names = Punctuated::<Ident, Token![,]>::parse_terminated_with(&within, Ident::parse_any)?;
    let names: Vec<Ident> = names.into_iter().collect();
    if names.is_empty() {
        return Err(Error::new(option.span(), format!("`{option}(…)` is empty")));
    }
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            return Err(Error::new(name.span(), format!("`{name}` is listed twice")));
        }
    }
    Ok(List { option: option.clone(), names })
}

/// Returns the path of the crate, by default `::phalanx`.
pub(crate) fn krate(given: Option<&Path>) -> proc_macro2::TokenStream {
    match given {
        Some(path) => path.to_token_stream(),
        None => quote::quote_spanned!(Span::call_site()=> ::phalanx),
    }
}
