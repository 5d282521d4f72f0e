// The GenICam description of a feature map: GenApi schema 1.1, elements in the order that the schema asks for.
#include <cmath>

#include "error.h"
#include "features.h"

namespace sci {

namespace {

std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
            case '&': out += "&amp;"; break;
            case '<': out += "&lt;"; break;
            case '>': out += "&gt;"; break;
            case '"': out += "&quot;"; break;
            default: out += c;
        }
    }
    return out;
}

std::string tag(const char* name, const std::string& text) {
    return format("<%s>", name) + escaped(text) + format("</%s>", name);
}

std::string number(double value) {
    return value == std::floor(value) && std::fabs(value) < 1e16 ? format("%.0f", value) : format("%.17g", value);
}

const char* visibility(Visibility who) {
    switch (who) {
        case Visibility::Beginner: return "Beginner";
        case Visibility::Expert: return "Expert";
        case Visibility::Guru: return "Guru";
        default: return "Invisible";
    }
}

const char* node_type(Kind kind) {
    switch (kind) {
        case Kind::Integer: return "Integer";
        case Kind::Float: return "Float";
        case Kind::Boolean: return "Boolean";
        case Kind::Enumeration: return "Enumeration";
        case Kind::String: return "StringReg";
        default: return "Command";
    }
}

std::string opening(const Feature& feature) {
    return format("<%s Name=\"%s\" NameSpace=\"%s\">", node_type(feature.kind), feature.name.c_str(),
                  feature.is_standard ? "Standard" : "Custom");
}

/// What every node begins with.
std::string common(const Feature& feature) {
    std::string out = tag("ToolTip", feature.tooltip) + tag("Description", feature.tooltip) +
                      tag("DisplayName", feature.name) + tag("Visibility", visibility(feature.visibility));
    if (feature.is_locked) {
        out += tag("pIsLocked", "TLParamsLocked");
    }
    return out;
}

std::string limits(const Feature& feature) {
    if (!feature.has_range) {
        return "";
    }
    std::string out;
    out += feature.min.feature.empty() ? tag("Min", number(feature.min.number)) : tag("pMin", feature.min.feature);
    out += feature.max.feature.empty() ? tag("Max", number(feature.max.number)) : tag("pMax", feature.max.feature);
    if (feature.increment != 0) {
        out += tag("Inc", number(feature.increment));
    }
    return out;
}

const char* access(const Feature& feature) {
    switch (feature.access) {
        case Access::ReadOnly: return "RO";
        case Access::WriteOnly: return "WO";
        default: return "RW";
    }
}

/// Where a feature's value lies. Hardly ever cached: values depend on each other and on time. Width alone is, as most
/// features of real cameras are: consumers that ask a lost camera for it must get past their own cache.
std::string place(const Feature& feature, const std::string& port) {
    const bool in_chunk = feature.chunk_id != 0;
    return tag("Address", format("0x%llx", static_cast<unsigned long long>(in_chunk ? 0 : feature.address))) +
           tag("Length", feature.kind == Kind::String ? std::to_string(FeatureMap::kStringBytes) : "8") +
           tag("AccessMode", access(feature)) + tag("pPort", in_chunk ? feature.name + "Port" : port) +
           (feature.name == "Width" ? tag("Cachable", "WriteThrough") + tag("pInvalidator", "UserSetLoad")
                                    : tag("Cachable", "NoCache"));
}

std::string value_register(const Feature& feature, const std::string& port) {
    const bool real = feature.kind == Kind::Float;
    std::string out = format("<%s Name=\"%sReg\">", real ? "FloatReg" : "IntReg", feature.name.c_str());
    out += tag("Visibility", "Invisible") + place(feature, port);
    out += real ? "" : tag("Sign", "Signed");
    out += tag("Endianess", "LittleEndian") + (real ? "</FloatReg>\n" : "</IntReg>\n");
    if (feature.chunk_id != 0) {
        out += format("<Port Name=\"%sPort\"><ChunkID>%x</ChunkID></Port>\n", feature.name.c_str(), feature.chunk_id);
    }
    return out;
}

std::string selected(const std::vector<std::string>& names) {
    std::string out;
    for (const std::string& name : names) {
        out += tag("pSelected", name);
    }
    return out;
}

/// The element of one feature and, unless it is a register itself, of the register behind it.
std::string node(const Feature& feature, const std::string& port, const std::vector<std::string>& selects) {
    std::string out = opening(feature) + common(feature);
    const std::string streamable = tag("Streamable", feature.is_saved ? "Yes" : "No");
    const std::string value = tag("pValue", feature.name + "Reg");
    const std::string unit = feature.unit.empty() ? "" : tag("Unit", feature.unit);
    switch (feature.kind) {
        case Kind::Integer:
            out += streamable + value + limits(feature) + unit + selected(selects);
            break;
        case Kind::Float:
            out += streamable + value + limits(feature) + unit;
            break;
        case Kind::Boolean:
            out += streamable + value + tag("OnValue", "1") + tag("OffValue", "0") + selected(selects);
            break;
        case Kind::Enumeration:
            out += streamable;
            for (const Entry& entry : feature.entries) {
                out += format("<EnumEntry Name=\"%s\" NameSpace=\"%s\">", entry.name.c_str(),
                              feature.is_standard ? "Standard" : "Custom");
                out += entry.available.empty() ? "" : tag("pIsAvailable", entry.available);
                out += tag("Value", std::to_string(entry.value)) + "</EnumEntry>";
            }
            out += value + selected(selects);
            break;
        case Kind::Command:
            out += value + tag("CommandValue", "1");
            break;
        case Kind::String:
            return out + streamable + place(feature, port) + "</StringReg>\n";
    }
    return out + format("</%s>\n", node_type(feature.kind)) + value_register(feature, port);
}

}  // namespace

std::string FeatureMap::xml(const std::string& model, const std::string& port) const {
    std::string categories, nodes, root;
    std::vector<std::string> order;
    std::map<std::string, std::string> members;
    for (const Feature& feature : features_) {
        if (members.find(feature.category) == members.end()) {
            order.push_back(feature.category);
        }
        if (feature.is_standard || feature.visibility != Visibility::Invisible) {  // limits are no one's features
            members[feature.category] += tag("pFeature", feature.name);
        }
        std::vector<std::string> selects;
        for (const Feature& other : features_) {
            if (other.selector == feature.name) {
                selects.push_back(other.name);
            }
        }
        nodes += node(feature, port, selects);
    }
    for (const std::string& category : order) {
        root += tag("pFeature", category);
        categories += format("<Category Name=\"%s\" NameSpace=\"%s\">", category.c_str(),
                             category.compare(0, 9, "Simulated") == 0 ? "Custom" : "Standard") +
                      members[category] + "</Category>\n";
    }
    // A description is known by its GUIDs; one product, one version.
    return "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<RegisterDescription ModelName=\"" + model +
           "\" VendorName=\"sci_stream\" ToolTip=\"Simulated SCI camera\" StandardNameSpace=\"None\""
           " SchemaMajorVersion=\"1\" SchemaMinorVersion=\"1\" SchemaSubMinorVersion=\"0\""
           " MajorVersion=\"1\" MinorVersion=\"0\" SubMinorVersion=\"0\""
           " ProductGuid=\"6f0c5c1e-8f5d-4b1c-9a55-2f6f0d6c7b11\" VersionGuid=\"0d7a9a52-30c1-4f7e-8a5e-6f2b7c9d4e21\""
           " xmlns=\"http://www.genicam.org/GenApi/Version_1_1\""
           " xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\""
           " xsi:schemaLocation=\"http://www.genicam.org/GenApi/Version_1_1"
           " http://www.genicam.org/GenApi/GenApiSchema_Version_1_1.xsd\">\n"
           "<Category Name=\"Root\" NameSpace=\"Standard\">" +
           root + "</Category>\n" + categories + nodes + "<Port Name=\"" + port +
           "\" NameSpace=\"Standard\"></Port>\n</RegisterDescription>\n";
}

}  // namespace sci
