//! Tables that a command writes into a page of `docs/`, between two lines that stay.

use anyhow::Context;

/// `page` with `table` between the lines `begin` and `end`, in place of what stood there.
///
/// # Errors
///
/// When one of the lines is not there.
pub(crate) fn with_table(
    page: &str,
    begin: &str,
    end: &str,
    table: &str,
) -> anyhow::Result<String> {
    let (before, rest) = page.split_once(begin).with_context(|| format!("no line {begin}"))?;
    let (_, after) = rest.split_once(end).with_context(|| format!("no line {end}"))?;
    Ok(format!("{before}{begin}\n\n{table}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: &str = "<!-- begin: of a test -->";
    const END: &str = "<!-- end -->";

    #[test]
    fn the_table_of_the_page_is_replaced_and_nothing_else() {
        let page = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let once = with_table(&page, BEGIN, END, "new\n").unwrap();
        assert_eq!(once, format!("a\n{BEGIN}\n\nnew\n\n{END}\nb\n"));
        assert_eq!(with_table(&once, BEGIN, END, "new\n").unwrap(), once);
        assert!(with_table("nothing", BEGIN, END, "new").is_err());
        assert!(with_table(&format!("{BEGIN}\nno end"), BEGIN, END, "new").is_err());
    }
}
