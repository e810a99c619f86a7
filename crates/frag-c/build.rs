//! Gives the shared library its name, so that a program which was linked with it by a path asks for it by that name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libshunt_frag.so");
}
