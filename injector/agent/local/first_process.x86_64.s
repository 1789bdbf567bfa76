# The program of first_process.py, which has its machine code; a test assembles this and compares.
        mov     $13, %eax               # rt_sigaction(SIGCHLD, {SIG_IGN}, NULL, 8)
        mov     $17, %edi
        lea     action(%rip), %rsi
        xor     %edx, %edx
        mov     $8, %r10d
        syscall

        mov     $1, %eax                # write(1, "\x01", 1)
        mov     $1, %edi
        lea     action(%rip), %rsi
        mov     $1, %edx
        syscall
        dec     %eax
        jne     alone

        mov     $436, %eax              # close_range(0, ~0, 0)
        xor     %edi, %edi
        mov     $~0, %esi
        xor     %edx, %edx
        syscall

sleep:  mov     $34, %eax               # pause()
        syscall
        jmp     sleep

alone:  mov     $60, %eax               # exit(1)
        mov     $1, %edi
        syscall

        .balign 8
action: .quad   1, 0, 0, 0              # SIG_IGN, no flags, no restorer, no mask; its first byte is written
