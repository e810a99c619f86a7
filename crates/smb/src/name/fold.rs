//! Names that differ in case only.

/// The simple upper case of a character, as the table of Windows has it: one UTF-16 unit becomes one unit,
/// and nothing beyond ASCII becomes ASCII.
#[inline]
pub(super) fn upper(c: char) -> char {
    if c.is_ascii() {
        return c.to_ascii_uppercase();
    }
    // Micro sign: Unicode has a Greek capital for it, Windows keeps it.
    if c == '\u{b5}' || u32::from(c) > 0xffff {
        return c;
    }
    let mut upper = c.to_uppercase();
    match (upper.next(), upper.next()) {
        (Some(one), None) if !one.is_ascii() && u32::from(one) <= 0xffff => one,
        _ => c,
    }
}

/// `name` in upper case: names are the same for a client if these are equal.
#[must_use]
pub fn fold(name: &str) -> String {
    if name.is_ascii() {
        return name.to_ascii_uppercase();
    }
    name.chars().map(upper).collect()
}

/// Whether two names are the same for a client, without making either upper case first.
#[must_use]
pub fn same(a: &str, b: &str) -> bool {
    if a.is_ascii() && b.is_ascii() {
        return a.eq_ignore_ascii_case(b);
    }
    a.chars().map(upper).eq(b.chars().map(upper))
}
