//! What a fork makes of connections, as far as one process can say it.

use super::*;

/// Another thread of the parent was in the middle of something, which in the child nobody brings to an end.
#[test]
fn nothing_stays_busy_in_a_child() {
    let before = [Phase::Fresh, Phase::Server, Phase::Offered, Phase::Asked];
    let after = [Phase::Fresh, Phase::Server, Phase::Offered, Phase::Tcp];
    for (before, after) in before.into_iter().zip(after) {
        let conn = Conn::default();
        conn.set_phase(before);
        assert!(conn.swap_phase(before, Phase::Busy));
        conn.forked(Calls::default());
        assert_eq!(conn.phase(), after, "from {before:?}");
    }
}
