/* User-mode Linux 6.1 knows 2,696 bytes of a process's registers and ends on a processor that has more (AMX), whose
   kernel sets all or none: this reads all and hands over, or replaces, the first of them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

long ptrace(enum __ptrace_request request, ...) {
  static long (*real)(int, pid_t, void *, void *);
  static char state[65536];
  if (!real) real = dlsym(RTLD_NEXT, "ptrace");
  va_list list;
  va_start(list, request);
  pid_t pid = va_arg(list, pid_t);
  void *address = va_arg(list, void *), *data = va_arg(list, void *);
  va_end(list);
  if ((request != PTRACE_GETREGSET && request != PTRACE_SETREGSET) || address != (void *)NT_X86_XSTATE)
    return real(request, pid, address, data);
  struct iovec *known = data, all = {state, sizeof state};
  if (real(PTRACE_GETREGSET, pid, address, &all) < 0) return -1;
  if (known->iov_len > all.iov_len) known->iov_len = all.iov_len;
  if (request == PTRACE_SETREGSET) {
    memcpy(state, known->iov_base, known->iov_len);
    return real(request, pid, address, &all);
  }
  memcpy(known->iov_base, state, known->iov_len);
  return 0;
}
