//! The code of a Rust file alone: without comments, test items and what is inside literals.

/// A file's code. Lines are where they were.
pub struct Code(String);

/// A word of the code.
pub struct Word<'a> {
    /// Its line, from 1.
    pub line: usize,
    /// The word.
    pub text: &'a str,
    /// What stands directly before it, if it is no white space.
    pub before: Option<char>,
    /// What stands directly behind it, if it is no white space.
    pub after: Option<char>,
}

impl Code {
    /// Reads a file's text.
    pub fn of(source: &str) -> Self {
        let mut rest: Vec<char> = source.chars().collect();
        blank_comments_and_literals(&mut rest);
        Code(without_tests(rest.into_iter().collect()))
    }

    /// How many lines have code on them.
    pub fn lines(&self) -> usize {
        self.0.lines().filter(|line| !line.trim().is_empty()).count()
    }

    /// Every identifier, keyword and number.
    pub fn words(&self) -> impl Iterator<Item = Word<'_>> {
        self.0.lines().zip(1..).flat_map(|(text, line)| {
            let words = text.split(|c: char| !is_of_word(c)).filter(|word| !word.is_empty());
            words.map(move |word| {
                let begin = word.as_ptr() as usize - text.as_ptr() as usize;
                let visible = |c: &char| !c.is_whitespace();
                let before = text[..begin].chars().next_back().filter(visible);
                let after = text[begin + word.len()..].chars().next().filter(visible);
                Word { line, text: word, before, after }
            })
        })
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Puts a space for every character of a comment and a quotation mark for every character of a literal.
fn blank_comments_and_literals(text: &mut [char]) {
    let mut at = 0;
    while at < text.len() {
        let (end, filler) = match (text[at], text.get(at + 1)) {
            ('/', Some('/')) => (line_end(text, at), ' '),
            ('/', Some('*')) => (comment_end(text, at), ' '),
            ('"', _) => (string_end(text, at), '"'),
            ('\'', Some('\\')) => (escaped_end(text, at + 1, '\''), '"'),
            ('\'', Some(_)) if text.get(at + 2) == Some(&'\'') => (at + 3, '"'),
            _ => (at + 1, text[at]),
        };
        for c in &mut text[at..end] {
            if *c != '\n' {
                *c = filler;
            }
        }
        at = end;
    }
}

fn line_end(text: &[char], at: usize) -> usize {
    text[at..].iter().position(|c| *c == '\n').map_or(text.len(), |length| at + length)
}

/// The end of a comment that may hold others.
fn comment_end(text: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < text.len() {
        match (text[at], text.get(at + 1)) {
            ('/', Some('*')) => depth += 1,
            ('*', Some('/')) => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            break;
        }
    }
    at.min(text.len())
}

/// The end of a string that begins at a quotation mark; `r` and any number of `#` before it make it raw.
fn string_end(text: &[char], at: usize) -> usize {
    let hashes = text[..at].iter().rev().take_while(|c| **c == '#').count();
    if at > hashes && text[at - hashes - 1] == 'r' {
        let close = |rest: &[char]| rest[0] == '"' && rest[1..].iter().take_while(|c| **c == '#').count() >= hashes;
        let found = (at + 1..text.len()).find(|from| close(&text[*from..]));
        return found.map_or(text.len(), |quote| quote + 1 + hashes);
    }
    escaped_end(text, at + 1, '"')
}

/// The end of a literal that ends with `quote`, if no backslash stands before it.
fn escaped_end(text: &[char], mut at: usize, quote: char) -> usize {
    while at < text.len() {
        match text[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// The code without the items that are compiled for tests only.
fn without_tests(mut code: String) -> String {
    const ATTRIBUTE: &str = "#[cfg(test)]";
    while let Some(begin) = code.find(ATTRIBUTE) {
        let mut depth = 0_usize;
        let item = code[begin..].char_indices().find(|(_, c)| match c {
            '{' => {
                depth += 1;
                false
            }
            '}' => {
                depth = depth.saturating_sub(1);
                depth == 0
            }
            ';' => depth == 0,
            _ => false,
        });
        let end = item.map_or(code.len(), |(length, _)| begin + length + 1);
        let blank: String = code[begin..end].chars().filter(|c| *c == '\n').collect();
        code.replace_range(begin..end, &blank);
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        Code::of(source).words().map(|word| word.text.to_owned()).collect()
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        assert_eq!(words("a // b\n/* c /* d */ e */ f"), ["a", "f"]);
        assert_eq!(words(r#"let a = "x \" y"; b"#), ["let", "a", "b"]);
        assert_eq!(words("r#\"x \" y\"# a br\"z\\\" b"), ["r", "a", "br", "b"].map(|word| word.trim_matches('#')));
        assert_eq!(words("'x' '\\'' 'a b<'c> '\"' d"), ["a", "b", "c", "d"]);
    }

    #[test]
    fn test_items_are_no_code_and_lines_stay_where_they_are() {
        let code = Code::of("one\n\n#[cfg(test)]\nmod tests {\n    fn a() { x }\n}\n// end\nlast.word()\n");
        assert_eq!(code.lines(), 2);
        let last = code.words().last().expect("a word");
        assert_eq!((last.line, last.text, last.before, last.after), (8, "word", Some('.'), Some('(')));
        assert_eq!(words("#[cfg(test)]\nmod tests;\nfn a() {}"), ["fn", "a"]);
    }
}
