//! Tables and numbers for people.

use std::net::IpAddr;

/// On which side a column's cells stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Lines of cells under their headings, as wide as they need to be.
pub(crate) fn render(columns: &[(&str, Side)], rows: &[Vec<String>]) -> String {
    let width = |i: usize| {
        let cells = rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count());
        cells.chain([columns[i].0.chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let headings: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&headings).chain(rows) {
        let cells =
            row.iter().zip(columns).zip(&widths).map(|((cell, (_, side)), width)| match side {
                Side::Left => format!("{cell:<width$}"),
                Side::Right => format!("{cell:>width$}"),
            });
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A number of bytes in at most five characters: `0`, `980`, `1.5K`, `64K`, `12.3G`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let mut unit = 0;
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mut value = n as f64;
    // 999.5 would be shown as 1000.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value >= 99.95 || unit == 0 { 0 } else { 1 };
    let number = format!("{value:.digits$}");
    format!("{}{}", number.strip_suffix(".0").unwrap_or(&number), UNITS[unit])
}

/// A number of events in at most five characters: as [`bytes`], by thousands.
pub(crate) fn count(n: u64) -> String {
    match n {
        0..100_000 => n.to_string(),
        100_000..100_000_000 => format!("{}k", n / 1000),
        100_000_000..100_000_000_000 => format!("{}M", n / 1_000_000),
        _ => format!("{}G", n / 1_000_000_000),
    }
}

/// An address with its port, as `ss` writes it.
pub(crate) fn socket(address: IpAddr, port: u16) -> String {
    match address {
        IpAddr::V4(v4) => format!("{v4}:{port}"),
        IpAddr::V6(v6) => format!("[{v6}]:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = vec![vec!["a".into(), "1000".into()], vec!["longer".into(), "1".into()]];
        let text = render(&[("Name", Side::Left), ("N", Side::Right)], &rows);
        assert_eq!(text, "Name       N\na       1000\nlonger     1\n");
        assert_eq!(render(&[("Name", Side::Left)], &[]), "Name\n");
    }

    #[test]
    fn numbers_are_short() {
        let shown: Vec<String> =
            [0, 999, 1000, 1024, 1536, 65536, 1 << 20, 13_207_024_435, u64::MAX].map(bytes).into();
        assert_eq!(shown, ["0", "999", "1K", "1K", "1.5K", "64K", "1M", "12.3G", "16E"]);
        let shown: Vec<String> = [0, 99_999, 100_000, 250_000_000, u64::MAX].map(count).into();
        assert_eq!(shown, ["0", "99999", "100k", "250M", "18446744073G"]);
        for n in (0..64).map(|shift| 1u64 << shift) {
            assert!(bytes(n).len() <= 5 && bytes(n - 1).len() <= 5, "{n}");
        }
    }

    #[test]
    fn addresses_are_as_ss_writes_them() {
        assert_eq!(socket("127.0.0.1".parse().unwrap(), 80), "127.0.0.1:80");
        assert_eq!(socket("::1".parse().unwrap(), 80), "[::1]:80");
    }
}
