//! Expansion of one function: its body becomes the operation that every attempt runs.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Block, Error, GenericArgument, PathArguments, Result, ReturnType, Signature, Type, parse_quote};

use crate::arguments::{self, receiver};
use crate::options::{self, Options};

/// How the policy applies to a method: by name, or as part of a whole impl block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    ByName,
    WithBlock,
}

/// Wraps the body in a call under the policy.
pub(crate) fn attach(signature: &mut Signature, body: &mut Block, options: &Options, bound: Bound) -> Result<()> {
    let name = signature.ident.clone();
    if signature.asyncness.is_none() {
        return Err(Error::new(signature.fn_token.span, format!("`{name}` is not `async`: a policy may have to wait")));
    }
    let Some(policy) = &options.policy else {
        return Err(Error::new(Span::call_site(), "missing option `policy = \"…\"`"));
    };
    arguments::check(signature, options)?;
    let answer = Answer::of(signature)?;
    let module = match (&options.module, receiver(signature)) {
        (Some(module), _) => module.to_token_stream(),
        (None, Some(receiver)) => receiver.self_token.to_token_stream(),
        (None, None) => {
            return Err(Error::new(
                name.span(),
                format!("`{name}` has no `self` to get the module from: add `module = …`"),
            ));
        }
    };
    let krate = options::krate(options.krate.as_ref());
    let route = arguments::route(signature, options);
    let clones = arguments::clones(signature, options)?;
    let operation = operation(name.span(), &answer, &clones, body);
    let operation = quote!(#krate::internal::repeatable(#operation));
    let span = module.span();
    let module = quote_spanned!(span=> #krate::Resilient::resilience(&#module));
    let classify = options.classify.as_ref().map(|classify| quote!(.classify(#classify)));
    let call = match (bound, classify) {
        (Bound::ByName, None) => quote!(#krate::ResilienceModule::run(#module, #policy, #route, #operation).await),
        (Bound::ByName, Some(classify)) => {
            quote!(#krate::ResilienceModule::call(#module, #policy, #route)#classify.run(#operation).await)
        }
        (Bound::WithBlock, classify) => {
            let run = match classify {
                None => quote!(#krate::Pipeline::run(&pipeline, #operation).await),
                Some(classify) => quote!(#krate::Pipeline::call(&pipeline)#classify.run(#operation).await),
            };
            quote! {
                match #krate::ResilienceModule::port_pipeline(#module, #policy, #route) {
                    ::core::result::Result::Ok(pipeline) => #run,
                    ::core::result::Result::Err(rejection) => {
                        ::core::result::Result::Err(#krate::Error::Rejected(rejection))
                    },
                }
            }
        }
    };
    *body = match answer {
        Answer::Guarded { .. } => parse_quote!({ #call }),
        Answer::Own(_) => parse_quote!({ #krate::internal::flatten_rejection(#call) }),
    };
    Ok(())
}

/// Returns the closure for the attempts. Nothing is moved into it, so that it can be called again; clones are made inside.
fn operation(span: Span, answer: &Answer, clones: &TokenStream, body: &Block) -> TokenStream {
    let (Answer::Own(ty) | Answer::Guarded { body: ty }) = answer;
    let statements = &body.stmts;
    // Never runs; it fixes the type of the body, which the signature no longer does.
    let typed = quote! {
        #[allow(unreachable_code, clippy::all)]
        if false {
            let answer: #ty = loop {};
            return answer;
        }
    };
    quote_spanned! {span=>
        || async {
            #typed
            #clones
            #(#statements)*
        }
    }
}

/// The return type of the function.
enum Answer {
    /// `Result<T, E>`, the same as the body: a rejection is converted into `E`.
    Own(Type),
    /// `Result<T, Error<E>>`; the body returns `Result<T, E>`.
    Guarded { body: Type },
}

impl Answer {
    fn of(signature: &Signature) -> Result<Self> {
        let not_a_result = |at: &dyn ToTokens| {
            Err(Error::new_spanned(
                at,
                format!("`{}` must return a `Result`, so that a policy can reject the call", signature.ident),
            ))
        };
        let ReturnType::Type(_, ty) = &signature.output else {
            return not_a_result(&signature.ident);
        };
        let mut ty = (**ty).clone();
        let Type::Path(path) = &mut ty else {
            return not_a_result(&ty);
        };
        // `-> Result<T, Error<E>>`: the second argument is `Error` with one argument of its own.
        let arguments = path.path.segments.last_mut().map(|last| &mut last.arguments);
        let guarded = match arguments {
            Some(PathArguments::AngleBracketed(list)) => match list.args.iter_mut().nth(1) {
                Some(GenericArgument::Type(error)) => inner(error).map(|inner| *error = inner).is_some(),
                _ => false,
            },
            _ => false,
        };
        EraseImplTrait.visit_type_mut(&mut ty);
        Ok(if guarded { Self::Guarded { body: ty } } else { Self::Own(ty) })
    }
}

/// The `E` of an `Error<E>`.
fn inner(error: &Type) -> Option<Type> {
    let Type::Path(path) = error else {
        return None;
    };
    let last = path.path.segments.last().filter(|last| last.ident == "Error")?;
    let PathArguments::AngleBracketed(list) = &last.arguments else {
        return None;
    };
    match list.args.first() {
        Some(GenericArgument::Type(inner)) if list.args.len() == 1 => Some(inner.clone()),
        _ => None,
    }
}

/// Replaces `impl Trait`, which is not allowed in a `let`, by `_`.
struct EraseImplTrait;

impl VisitMut for EraseImplTrait {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        if matches!(ty, Type::ImplTrait(_)) {
            *ty = parse_quote!(_);
        } else {
            visit_mut::visit_type_mut(self, ty);
        }
    }
}
