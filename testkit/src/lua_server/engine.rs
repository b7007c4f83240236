//! Lua 5.1 with the `redis` table of a Redis script: one interpreter per thread, which runs scripts on any keyspace.
//!
//! Compiling the scripts takes some milliseconds, so the interpreter and the compiled scripts are kept for the life of
//! the thread.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::OnceLock;

use mlua::{Function, Lua, MultiValue, Table, Value};

use super::keyspace::{CommandReply, Keyspace};
use super::{Reply, numbers};

thread_local! {
    static ENGINE: RefCell<Option<Rc<RefCell<Engine>>>> = const { RefCell::new(None) };
}

struct Engine {
    lua: Lua,
    /// By the address of the source, which lives as long as the process.
    compiled: HashMap<usize, Function>,
    /// The keyspace of the script that runs at the moment.
    current: Rc<RefCell<Keyspace>>,
}

/// Runs a script on this keyspace. The error is the text that a client would receive.
pub(crate) fn run(
    keyspace: &mut Keyspace,
    name: &str,
    source: &'static str,
    keys: &[&[u8]],
    args: &[&[u8]],
) -> Result<Reply, String> {
    let engine =
        ENGINE.with(|engine| engine.borrow_mut().get_or_insert_with(|| Rc::new(RefCell::new(Engine::new()))).clone());
    let mut engine = engine.borrow_mut();
    let current = engine.current.clone();
    std::mem::swap(&mut *current.borrow_mut(), keyspace);
    let reply = engine.run(name, source, keys, args);
    std::mem::swap(&mut *current.borrow_mut(), keyspace);
    reply.map_err(|error| error_text(&error))
}

/// Returns the text of an error as a server replies it: that of the command that failed, or Lua's with the code `ERR`.
fn error_text(error: &mlua::Error) -> String {
    let text = match error {
        mlua::Error::CallbackError { cause, .. } | mlua::Error::WithContext { cause, .. } => return error_text(cause),
        mlua::Error::RuntimeError(text) => text.clone(),
        other => other.to_string(),
    };
    let code = text.split(' ').next().unwrap_or_default();
    let has_code = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase());
    if has_code { text } else { format!("ERR {text}") }
}

impl Engine {
    fn new() -> Self {
        let (lua, current) = (Lua::new(), Rc::default());
        prepare(&lua, &current).expect("the sandbox is valid");
        // Collects when the heap has grown tenfold, not twofold: scripts leave only garbage behind.
        lua.gc_set_mode(mlua::state::GcMode::Incremental(mlua::state::GcIncParams::default().pause(1000)));
        Self { lua, compiled: HashMap::new(), current }
    }

    fn run(&mut self, name: &str, source: &'static str, keys: &[&[u8]], args: &[&[u8]]) -> mlua::Result<Reply> {
        let function = match self.compiled.get(&source.as_ptr().addr()) {
            Some(function) => function.clone(),
            None => {
                let function = self.lua.load(&*mutated(source)).set_name(name).into_function()?;
                self.compiled.insert(source.as_ptr().addr(), function.clone());
                function
            }
        };
        let globals = self.lua.globals();
        globals.raw_set("KEYS", self.strings(keys)?)?;
        globals.raw_set("ARGV", self.strings(args)?)?;
        reply(function.call(())?)
    }

    fn strings(&self, values: &[&[u8]]) -> mlua::Result<Table> {
        let table = self.lua.create_table_with_capacity(values.len(), 0)?;
        for (index, value) in values.iter().enumerate() {
            table.raw_set(index + 1, self.lua.create_string(value)?)?;
        }
        Ok(table)
    }
}

/// Returns the source with the change that `make mutants` asks for: it starts the tests with one file of the scripts in
/// `PHALANX_LUA_ORIGINAL` and its mutant in `PHALANX_LUA_MUTANT`.
fn mutated(source: &'static str) -> Cow<'static, str> {
    let read = || std::env::var("PHALANX_LUA_ORIGINAL").ok().zip(std::env::var("PHALANX_LUA_MUTANT").ok());
    static MUTANT: OnceLock<Option<(String, String)>> = OnceLock::new();
    match MUTANT.get_or_init(read) {
        Some((original, mutant)) => source.replacen(original, mutant, 1).into(),
        None => source.into(),
    }
}

/// Adds the `redis` table to Lua and makes access to undefined globals an error, as Redis does.
fn prepare(lua: &Lua, keyspace: &Rc<RefCell<Keyspace>>) -> mlua::Result<()> {
    let redis = lua.create_table()?;
    for (name, caught) in [("call", false), ("pcall", true)] {
        let keyspace = Rc::clone(keyspace);
        let run = move |lua: &Lua, args: MultiValue| command(lua, &keyspace, args, caught);
        redis.set(name, lua.create_function(run)?)?;
    }
    let error_reply = lua.create_function(|lua, text: mlua::LuaString| {
        let table = lua.create_table()?;
        table.set("err", text)?;
        Ok(table)
    })?;
    redis.set("error_reply", error_reply)?;
    lua.globals().set("redis", redis)?;
    lua.globals().set("KEYS", false)?;
    lua.globals().set("ARGV", false)?;
    lua.load(
        "setmetatable(_G, {
            __newindex = function(_, name) error('Attempt to modify a readonly table: ' .. name, 2) end,
            __index = function(_, name) error('Script attempted to access nonexistent global variable ' .. name, 2) end,
        })",
    )
    .exec()
}

fn command(lua: &Lua, keyspace: &RefCell<Keyspace>, args: MultiValue, caught: bool) -> mlua::Result<Value> {
    let args = args.iter().map(argument).collect::<mlua::Result<Vec<_>>>()?;
    let parts: Vec<&[u8]> = args.iter().map(Argument::bytes).collect();
    let reply = keyspace.borrow_mut().execute(&parts);
    match reply {
        Ok(answer) => value(lua, answer),
        Err(error) if caught => {
            let table = lua.create_table()?;
            table.raw_set("err", error)?;
            Ok(Value::Table(table))
        }
        Err(error) => Err(mlua::Error::RuntimeError(error)),
    }
}

/// An argument of a command.
enum Argument<T> {
    Text(T),
    Number(String),
}

impl<T: Deref<Target = [u8]>> Argument<T> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => number.as_bytes(),
        }
    }
}

fn argument(value: &Value) -> mlua::Result<Argument<impl Deref<Target = [u8]> + use<>>> {
    match value {
        Value::String(text) => Ok(Argument::Text(text.as_bytes())),
        Value::Integer(number) => Ok(Argument::Number(number.to_string())),
        Value::Number(number) => Ok(Argument::Number(numbers::text(*number))),
        _ => {
            let error = "ERR Lua redis lib command arguments must be strings or integers";
            Err(mlua::Error::RuntimeError(error.to_owned()))
        }
    }
}

/// Converts the reply of a command to a Lua value.
fn value(lua: &Lua, answer: CommandReply) -> mlua::Result<Value> {
    Ok(match answer {
        CommandReply::Nil => Value::Boolean(false),
        CommandReply::Int(int) => Value::Number(int as f64),
        CommandReply::Bytes(bytes) => Value::String(lua.create_string(bytes)?),
        CommandReply::Ok => {
            let table = lua.create_table()?;
            table.raw_set("ok", "OK")?;
            Value::Table(table)
        }
        CommandReply::Array(parts) => {
            let table = lua.create_table()?;
            for (index, part) in parts.into_iter().enumerate() {
                table.raw_set(index + 1, value(lua, part)?)?;
            }
            Value::Table(table)
        }
    })
}

/// Converts the return value of a script to a reply: numbers lose their fraction, an array ends at its first nil.
fn reply(value: Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::Nil | Value::Boolean(false) => Reply::Nil,
        Value::Boolean(true) => Reply::Int(1),
        Value::Integer(int) => Reply::Int(int),
        Value::Number(number) => Reply::Int(number as i64),
        Value::String(text) => Reply::Bytes(text.as_bytes().to_vec()),
        Value::Table(table) => {
            if let Value::String(error) = table.raw_get("err")? {
                return Err(mlua::Error::RuntimeError(error.to_string_lossy()));
            }
            if let Value::String(status) = table.raw_get("ok")? {
                return Ok(Reply::Bytes(status.as_bytes().to_vec()));
            }
            Reply::Array(table.sequence_values().map(|part| reply(part?)).collect::<mlua::Result<_>>()?)
        }
        other => return Err(mlua::Error::RuntimeError(format!("not a reply: {}", other.type_name()))),
    })
}
