//! Module-scope variables of a program, which the device places.

/// State space of a module-scope variable that the device must place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GlobalSpace {
    /// `.global`
    Global,
    /// `.const`
    Const,
    /// `.global .texref`: the device binds a texture to it; its address serves as handle.
    TextureReference,
    /// `.global .surfref`
    SurfaceReference,
    /// `.global .samplerref`
    SamplerReference,
}

/// Visibility of a module-scope variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GlobalLinkage {
    /// Not visible outside the module, but still found by `cuModuleGetGlobal` when unique.
    Local,
    /// `.visible`
    Visible,
    /// `.weak` or `.common`
    Weak,
    /// `.extern`: another module must define it.
    Extern,
}

/// What a relocation points at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelocationTarget {
    /// Another global, by index into [`Program::globals`](super::Program::globals).
    Global(usize),
    /// Address of a function or kernel, as function pointers have it.
    Function(u64),
}

/// A pointer inside initial bytes. [`Program::initial_bytes`](super::Program::initial_bytes) applies them; listed for information.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Offset of the pointer in the variable.
    pub offset_bytes: u64,
    /// Width of the pointer: 1, 2, 4 or 8 bytes.
    pub width_bytes: u8,
    /// Right shift before storing (`mask()` operator of PTX initialisers); 0 for plain pointers.
    pub shift_bits: u8,
    /// Target.
    pub target: RelocationTarget,
    /// Added to the target's address.
    pub addend: i64,
}

/// A module-scope variable.
#[derive(Clone, Debug)]
pub struct GlobalSymbol {
    /// Name.
    pub name: String,
    /// State space.
    pub space: GlobalSpace,
    /// Linkage.
    pub linkage: GlobalLinkage,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Alignment, bytes; a power of two.
    pub align_bytes: u64,
    /// `.managed`
    pub managed: bool,
    /// Initial bytes before relocation; may be shorter than `size_bytes`, the rest is zero.
    pub initial: Vec<u8>,
    /// Pointers inside `initial`.
    pub relocations: Vec<Relocation>,
}
