# The program of syscall_program.py, which has its machine code; a test assembles this and compares.
# rbx: where the list is; r12: the call that is being made.
        .equ    PLACE, 0x10000000
        .equ    SIZE, 0x1000000
        .equ    DESCRIPTOR, 3

        mov     $9, %eax                # mmap(PLACE, SIZE, PROT_READ | PROT_WRITE,
        mov     $PLACE, %edi            #      MAP_SHARED | MAP_FIXED, DESCRIPTOR, 0)
        mov     $SIZE, %esi
        mov     $3, %edx
        mov     $0x11, %r10d
        mov     $DESCRIPTOR, %r8d
        xor     %r9d, %r9d
        syscall
        mov     %rax, %rbx
        mov     16(%rbx), %r12          # the first call

call:   mov     (%r12), %rax
        mov     8(%r12), %rdi
        mov     16(%r12), %rsi
        mov     24(%r12), %rdx
        mov     32(%r12), %r10
        mov     40(%r12), %r8
        syscall
        cmp     $-4095, %rax
        jae     error
        testb   $1, 48(%r12)            # is another result than zero the end?
        je      next
        test    %rax, %rax
        jne     done
next:   add     $64, %r12
        jmp     call

error:  neg     %rax
        cmp     $63, %rax
        ja      failed
        mov     48(%r12), %rcx
        bt      %rax, %rcx              # is this errno passed over?
        jb      next
failed: mov     %rax, (%rbx)            # errno
        mov     56(%r12), %rax
        mov     %rax, 8(%rbx)           # step
        mov     $127, %edi
        jmp     exit
done:   xor     %edi, %edi
exit:   mov     $231, %eax              # exit_group
        syscall
