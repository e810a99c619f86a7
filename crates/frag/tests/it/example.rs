//! That the example does what it says.

#[path = "../../examples/reassemble.rs"]
#[expect(dead_code, reason = "its main is for people")]
mod reassemble;

use reassemble::{Summary, reassemble};

#[test]
fn the_example_puts_together_what_comes_to_two_cores() {
    let Summary { mut payloads, released, late, handed_over } = reassemble(300).unwrap();
    assert_eq!((payloads.len(), late), (300, 1));
    // Ten fragments each, and one that waited in vain.
    assert_eq!(released, 300 * 10 + 1);
    assert!((900..2100).contains(&handed_over), "half of them, by chance: {handed_over}");
    payloads.sort();
    let mut expected: Vec<Vec<u8>> =
        (0..300u16).map(|id| vec![id.to_be_bytes()[1]; 5000]).collect();
    expected.sort();
    assert!(payloads == expected);
}
