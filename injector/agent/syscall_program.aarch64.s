// The program of syscall_program.py, which has its machine code; a test assembles this and compares.
// x19: where the list is; x20: the call that is being made.
        .equ    PLACE, 0x10000000
        .equ    SIZE, 0x1000000
        .equ    DESCRIPTOR, 3

        mov     x8, 222                 // mmap(PLACE, SIZE, PROT_READ | PROT_WRITE,
        mov     x0, PLACE               //      MAP_SHARED | MAP_FIXED, DESCRIPTOR, 0)
        mov     x1, SIZE
        mov     x2, 3
        mov     x3, 0x11
        mov     x4, DESCRIPTOR
        mov     x5, 0
        svc     0
        mov     x19, x0
        ldr     x20, [x19, 16]          // the first call

call:   ldr     x8, [x20]
        ldp     x0, x1, [x20, 8]
        ldp     x2, x3, [x20, 24]
        ldr     x4, [x20, 40]
        svc     0
        cmn     x0, 4095
        b.hs    error
        ldr     x1, [x20, 48]
        tbz     w1, 0, next             // is another result than zero the end?
        cbnz    x0, done
next:   add     x20, x20, 64
        b       call

error:  neg     x0, x0
        cmp     x0, 63
        b.hi    failed
        ldr     x1, [x20, 48]
        lsr     x1, x1, x0
        tbnz    w1, 0, next             // is this errno passed over?
failed: str     x0, [x19]               // errno
        ldr     x1, [x20, 56]
        str     x1, [x19, 8]            // step
        mov     x0, 127
        b       exit
done:   mov     x0, 0
exit:   mov     x8, 94                  // exit_group
        svc     0
