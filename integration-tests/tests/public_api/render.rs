//! The public items of a crate as text, read from its sources: signatures without bodies.

#![allow(clippy::panic, clippy::unwrap_used)] // a failed test panics, also in helpers

use std::fmt::Write;
use std::fs;
use std::path::Path;

use syn::{Attribute, Block, Fields, File, ImplItem, Item, ItemImpl, ItemMod, TraitItem, Visibility, parse_quote};

/// Renders the public items of a crate and of all its modules, in the order of the sources.
pub(crate) fn surface(root: &Path, library: &str) -> String {
    let items = parse(root);
    let mut text = String::new();
    module(root, library, &items, &mut text);
    text
}

fn parse(path: &Path) -> Vec<Item> {
    let source = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    syn::parse_file(&source).unwrap_or_else(|error| panic!("{}: {error}", path.display())).items
}

fn module(file: &Path, path: &str, items: &[Item], text: &mut String) {
    let own = self::items(path, items);
    text.push_str(&own);
    for nested in items.iter().filter_map(as_module).filter(|module| !is_test(&module.attrs)) {
        let name = nested.ident.to_string();
        let path = format!("{path}::{name}");
        match &nested.content {
            Some((_, items)) => module(file, &path, items, text),
            // Alternatives that a feature chooses between: they are private, and nothing in them is seen outside.
            None if has_path(&nested.attrs) => assert!(!is_public(&nested.vis), "{path} has a `path` attribute"),
            None => {
                let source = source_of(file, &name);
                module(&source, &path, &parse(&source), text);
            }
        }
    }
}

const fn as_module(item: &Item) -> Option<&ItemMod> {
    match item {
        Item::Mod(module) => Some(module),
        _ => None,
    }
}

/// Whether an attribute says where the file of a module is.
fn has_path(attributes: &[Attribute]) -> bool {
    let is_path = |attribute: &Attribute| {
        let conditional = attribute.path().is_ident("cfg_attr");
        attribute.path().is_ident("path") || conditional && quoted(attribute).contains("path =")
    };
    attributes.iter().any(is_path)
}

fn quoted(attribute: &Attribute) -> String {
    match &attribute.meta {
        syn::Meta::List(list) => list.tokens.to_string(),
        _ => String::new(),
    }
}

/// The file of `mod name;` in `file`: beside `lib.rs`, else in the folder named after `file`.
fn source_of(file: &Path, name: &str) -> std::path::PathBuf {
    let folder = if file.ends_with("lib.rs") { file.with_file_name("") } else { file.with_extension("") };
    folder.join(format!("{name}.rs"))
}

/// Renders the public items of one module under a heading; nothing if it has none.
pub(crate) fn items(path: &str, items: &[Item]) -> String {
    let public: Vec<Item> = items.iter().filter(|item| !is_test(attributes(item))).filter_map(public_part).collect();
    let mut text = String::new();
    if !public.is_empty() {
        let file = File { shebang: None, attrs: Vec::new(), items: public };
        writeln!(text, "// {path}\n{}", prettyplease::unparse(&file)).unwrap();
    }
    text
}

/// The part of an item that its users can see; none if they see nothing of it.
fn public_part(item: &Item) -> Option<Item> {
    let mut item = item.clone();
    let public = match &mut item {
        Item::Const(item) => {
            *item.expr = parse_quote!(_);
            &item.vis
        }
        Item::Enum(item) => {
            item.variants.iter_mut().for_each(|variant| variant.attrs.retain(is_contract));
            for field in item.variants.iter_mut().flat_map(|variant| variant.fields.iter_mut()) {
                field.attrs.retain(is_contract);
            }
            &item.vis
        }
        Item::Fn(item) => {
            *item.block = no_body();
            &item.vis
        }
        Item::Struct(item) => {
            item.fields = public_fields(&item.fields);
            &item.vis
        }
        Item::Trait(item) => {
            item.items.iter_mut().for_each(without_body);
            &item.vis
        }
        Item::Type(item) => &item.vis,
        Item::Use(item) => &item.vis,
        Item::Mod(item) => {
            item.content = None;
            item.semi = Some(Default::default());
            &item.vis
        }
        Item::Impl(block) => return public_methods(block.clone()).map(Item::Impl),
        _ => return None,
    };
    let seen = matches!(public, Visibility::Public(_));
    attributes_mut(&mut item).retain(is_contract);
    seen.then_some(item)
}

fn public_fields(fields: &Fields) -> Fields {
    let mut fields = fields.clone();
    for field in &mut fields {
        field.attrs.retain(is_contract);
    }
    match &mut fields {
        Fields::Named(named) => {
            named.named = named.named.iter().filter(|field| is_public(&field.vis)).cloned().collect();
        }
        Fields::Unnamed(unnamed) => {
            unnamed.unnamed = unnamed.unnamed.iter().filter(|field| is_public(&field.vis)).cloned().collect();
        }
        Fields::Unit => {}
    }
    fields
}

/// An `impl` of a trait is public as a whole; of a type, its public methods are. Bodies are left out.
fn public_methods(mut block: ItemImpl) -> Option<ItemImpl> {
    block.attrs.retain(is_contract);
    if block.trait_.is_some() {
        block.items.clear();
        return Some(block);
    }
    block.items.retain_mut(|item| match item {
        ImplItem::Fn(method) => {
            method.attrs.retain(is_contract);
            method.block = no_body();
            is_public(&method.vis)
        }
        ImplItem::Const(constant) => {
            constant.attrs.retain(is_contract);
            constant.expr = parse_quote!(_);
            is_public(&constant.vis)
        }
        _ => false,
    });
    (!block.items.is_empty()).then_some(block)
}

/// A provided method keeps an empty body, so that it can be told from a required one.
fn without_body(item: &mut TraitItem) {
    match item {
        TraitItem::Fn(method) => {
            method.attrs.retain(is_contract);
            if let Some(body) = &mut method.default {
                *body = no_body();
            }
        }
        TraitItem::Const(constant) => constant.attrs.retain(is_contract),
        TraitItem::Type(associated) => associated.attrs.retain(is_contract),
        _ => {}
    }
}

fn no_body() -> Block {
    parse_quote!({})
}

const fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Attributes that users depend on: what is derived, what is compiled in, what may grow, what must be used.
fn is_contract(attribute: &Attribute) -> bool {
    ["derive", "cfg", "non_exhaustive", "must_use"].iter().any(|name| attribute.path().is_ident(name))
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && {
            let mut test = false;
            let _ = attribute.parse_nested_meta(|meta| {
                test |= meta.path.is_ident("test");
                if meta.path.is_ident("all") {
                    meta.parse_nested_meta(|inner| {
                        test |= inner.path.is_ident("test");
                        let _ = inner.value().and_then(|value| value.parse::<syn::Lit>());
                        if inner.input.peek(syn::token::Paren) {
                            let content;
                            syn::parenthesized!(content in inner.input);
                            let _: proc_macro2::TokenStream = content.parse()?;
                        }
                        Ok(())
                    })?;
                }
                Ok(())
            });
            test
        }
    })
}

/// Whether documentation leaves an item out.
pub(crate) fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let mut hidden = false;
        let _ = attribute.path().is_ident("doc").then(|| {
            attribute.parse_nested_meta(|meta| {
                hidden |= meta.path.is_ident("hidden");
                Ok(())
            })
        });
        hidden
    })
}

/// The name of a public item that is defined here.
pub(crate) fn public_name(item: &Item) -> Option<String> {
    let (visibility, name) = match item {
        Item::Const(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        Item::Fn(item) => (&item.vis, &item.sig.ident),
        Item::Mod(item) => (&item.vis, &item.ident),
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        Item::Type(item) => (&item.vis, &item.ident),
        _ => return None,
    };
    is_public(visibility).then(|| name.to_string())
}

pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn attributes_mut(item: &mut Item) -> &mut Vec<Attribute> {
    match item {
        Item::Const(item) => &mut item.attrs,
        Item::Enum(item) => &mut item.attrs,
        Item::Fn(item) => &mut item.attrs,
        Item::Impl(item) => &mut item.attrs,
        Item::Mod(item) => &mut item.attrs,
        Item::Struct(item) => &mut item.attrs,
        Item::Trait(item) => &mut item.attrs,
        Item::Type(item) => &mut item.attrs,
        Item::Use(item) => &mut item.attrs,
        _ => unreachable!("an item without a public part"),
    }
}
