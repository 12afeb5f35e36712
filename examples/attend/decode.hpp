// Which lists of mechanisms a cache is built with. Compiling one takes its time, so that a list
// serves several kinds of cases: what a case does not have is there with zeros and adds nothing.
#pragma once

#include "heed/mechanisms/alibi.hpp"
#include "heed/mechanisms/cope.hpp"
#include "heed/mechanisms/fox.hpp"
#include "heed/mechanisms/path.hpp"
#include "heed/mechanisms/relative.hpp"
#include "heed/mechanisms/rope.hpp"
#include "run.hpp"

namespace attend_program {

// The first tokens in one go, the others one by one, as settings::decode says. Each list is built
// in a decode_*.cpp.
template <class T, class... Mechanisms>
outcome decode_list(const case_folder& c, const settings& s, const Mechanisms&... mechanisms);

template <class T>
class absent {
 public:
  explicit absent(const case_folder& c)
      : p_(c.problem()), slopes_(static_cast<std::size_t>(p_.Hq)) {}

  static heed::rope rope() { return {.on = false}; }
  heed::alibi alibi() const { return {slopes_}; }
  heed::relative<T> relative() const {
    return {heed::tensor_view<const T, 2>(&zero_, {p_.D, 1}, {0, 0})};
  }
  heed::fox<T> fox() const {
    return {heed::tensor_view<const T, 3>(&zero_, {p_.B, p_.S, p_.Hq}, {0, 0, 0})};
  }

 private:
  heed::problem p_;
  T zero_ = 0;
  std::vector<double> slopes_;
};

template <class T, class... Mechanisms>
outcome decode(const case_folder& c, const settings& s, const Mechanisms&... mechanisms) {
  return decode_list<T>(c, s, mechanisms...);
}
template <class T>
outcome decode(const case_folder& c, const settings& s, const heed::rope& rope,
               const heed::fox<T>& fox) {
  const absent<T> no(c);
  return decode_list<T>(c, s, rope, no.alibi(), no.relative(), fox);
}
template <class T>
outcome decode(const case_folder& c, const settings& s, const heed::rope& rope) {
  return decode<T>(c, s, rope, absent<T>(c).fox());
}
template <class T>
outcome decode(const case_folder& c, const settings& s) {
  return decode<T>(c, s, absent<T>::rope());
}
template <class T>
outcome decode(const case_folder& c, const settings& s, const heed::alibi& alibi) {
  const absent<T> no(c);
  return decode_list<T>(c, s, no.rope(), alibi, no.relative(), no.fox());
}
template <class T>
outcome decode(const case_folder& c, const settings& s, const heed::relative<T>& relative) {
  const absent<T> no(c);
  return decode_list<T>(c, s, no.rope(), no.alibi(), relative, no.fox());
}
template <class T>
outcome decode(const case_folder& c, const settings& s, const heed::path<T>& path) {
  return decode_list<T>(c, s, path, absent<T>(c).fox());
}
template <class T>
outcome decode(const case_folder& c, const settings& s, const heed::cope<T>& cope) {
  return decode_list<T>(c, s, cope, absent<T>(c).relative());
}

}  // namespace attend_program
