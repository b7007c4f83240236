//! The list of mutants that no test can catch, `mutants/lua-survivors.toml`.
//!
//! An entry names the file and the changed line, not its number, so that edits elsewhere in the file keep it valid.

use super::lua::Mutant;

/// A listed mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survivor {
    /// The file, relative to `lua/scripts`.
    pub file: String,
    /// The changed line, trimmed.
    pub mutant: String,
    /// Why no test can catch it.
    pub reason: String,
}

impl Survivor {
    /// Returns whether this entry lists the mutant.
    pub fn lists(&self, mutant: &Mutant) -> bool {
        self.file == mutant.file && self.mutant == mutant.after
    }
}

/// Parses the list. Returns every mistake in it.
pub fn parse(text: &str) -> Result<Vec<Survivor>, Vec<String>> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| vec![error.to_string()])?;
    let (mut survivors, mut mistakes) = (Vec::new(), Vec::new());
    for (key, value) in table {
        match value {
            toml::Value::Array(entries) if key == "survivor" => {
                for (number, entry) in entries.iter().enumerate() {
                    match survivor(entry) {
                        Ok(survivor) => survivors.push(survivor),
                        Err(mistake) => mistakes.push(format!("survivor {}: {mistake}", number + 1)),
                    }
                }
            }
            _ => mistakes.push(format!("unknown key: {key}")),
        }
    }
    if mistakes.is_empty() { Ok(survivors) } else { Err(mistakes) }
}

fn survivor(entry: &toml::Value) -> Result<Survivor, String> {
    let entry = entry.as_table().ok_or("not a table")?;
    if let Some(key) = entry.keys().find(|key| !["file", "mutant", "reason"].contains(&key.as_str())) {
        return Err(format!("unknown key: {key}"));
    }
    let text = |key: &str| match entry.get(key).and_then(toml::Value::as_str) {
        // A statement that can be left out is dead: an entry without text would list every such statement of its file.
        Some(text) if !text.trim().is_empty() => Ok(text.to_owned()),
        _ => Err(format!("{key} is missing")),
    };
    Ok(Survivor { file: text("file")?, mutant: text("mutant")?, reason: text("reason")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::{lua, workspace};

    #[test]
    fn every_mistake_of_the_list_is_returned() {
        let text = "other = 1\n[[survivor]]\nfile = 'a'\n[[survivor]]\nfile = 'a'\nmutant = 'b'\nreason = ' '\n\
                    [[survivor]]\nfile = 'a'\nmutant = 'b'\nreason = 'c'\nline = 3\n";
        let mistakes = parse(text).unwrap_err();
        assert_eq!(
            mistakes,
            [
                "unknown key: other",
                "survivor 1: mutant is missing",
                "survivor 2: reason is missing",
                "survivor 3: unknown key: line"
            ]
        );
    }

    #[test]
    fn every_listed_survivor_is_a_mutant_of_a_shipped_script() {
        let text = std::fs::read_to_string(workspace().join("mutants/lua-survivors.toml")).unwrap();
        let mutants = lua::mutants_in(&workspace().join("lua/scripts"));
        let listed = parse(&text).unwrap();
        for survivor in &listed {
            assert!(mutants.iter().any(|mutant| survivor.lists(mutant)), "no such mutant: {survivor:?}");
            assert_eq!(listed.iter().filter(|other| other == &survivor).count(), 1, "listed twice: {survivor:?}");
        }
    }
}
